"""Before t0: what is waited for, and what refuses a start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak.core.errors import CannotRun
from soak.core.incidents import KINDS
from soak.core.muster import READY_WITHIN_MS, Muster
from soak.core.ports import Happening, Ready
from soak.core.records import Poll, Quantity, Reading, State


def ready(gpu: str, at_ms: int = 1_000) -> Ready:
    return Ready(gpu, at_ms, "attention_v1", "the fastest that compiles", 400.0, {"torch": "2.13"})


class Start:
    def __init__(self, make: Any, n: int = 1, required: bool = True, **device: Any) -> None:
        self.make = make
        info = make.record([]).info
        self.gpus = [f"gpu{index}" for index in range(n)]
        devices = tuple(
            replace(make.device(**{"ecc_baseline": {}, **device}), gpu=gpu) for gpu in self.gpus
        )  # fmt: skip
        limits = {} if required else {"required": frozenset({"faults"})}
        self.muster = Muster(replace(info, devices=devices), make.protocol(limits=limits), 0)

    def counters(self, gpu: str, **counts: Any) -> None:
        poll = self.make.poll(500, ecc=self.make.counters(**counts))
        self.muster.take_reading(replace(poll, gpu=gpu))


def test_every_card_has_to_be_ready_and_have_a_baseline(make: Any) -> None:
    start = Start(make, 2)
    assert start.muster.waiting_for(0) == ["the first step of gpu0", "the first step of gpu1"]
    start.muster.take_event(ready("gpu0"))
    assert start.muster.waiting_for(0) == ["the first step of gpu1"]
    start.muster.take_event(ready("gpu1"))
    assert start.muster.waiting_for(2_000) == ["the ECC baseline of gpu0", "the ECC baseline of gpu1"]
    for gpu in start.gpus:
        start.counters(gpu, corrected=57, uncorrected=2)
    assert start.muster.waiting_for(2_000) == []
    info = start.muster.info_at_t0()
    assert [d.ecc_baseline["ras/umc/corrected"].value for d in info.devices] == [57, 57]
    assert (info.kernel, info.versions["torch"]) == ("attention_v1", "2.13")


def test_each_card_keeps_its_kernel_and_why_and_the_run_names_them_all(make: Any) -> None:
    start = Start(make, 3, required=False)
    for gpu in ("gpu0", "gpu1"):
        start.muster.take_event(ready(gpu))
    fallen_back = replace(ready("gpu2"), kernel="naive", kernel_reason="v1 failed its preflight")
    start.muster.take_event(fallen_back)
    assert start.muster.waiting_for(0) == []
    info = start.muster.info_at_t0()
    assert info.kernel == "attention_v1, naive"
    assert [d.kernel for d in info.devices] == ["attention_v1", "attention_v1", "naive"]
    assert info.devices[2].kernel_reason == "v1 failed its preflight"
    assert info.devices[0].load["largest_step_ms"] == ready("gpu0").step_ms


def test_a_card_without_a_first_step_is_named_after_ten_minutes(make: Any) -> None:
    start = Start(make, 2)
    start.muster.take_event(ready("gpu1"))
    start.muster.waiting_for(READY_WITHIN_MS)
    with pytest.raises(CannotRun, match="gpu0: no step finished within 10 min"):
        start.muster.waiting_for(READY_WITHIN_MS + 1)


def test_an_unreadable_baseline_refuses_the_start(make: Any) -> None:
    start = Start(make, ecc=Reading.unreadable("EIO"))
    start.muster.take_event(ready("gpu0"))
    start.counters("gpu0", corrected=1, uncorrected=Reading.unreadable("EIO"))
    assert start.muster.waiting_for(21_000)
    with pytest.raises(CannotRun, match=r"gpu0: the ECC baseline cannot be read \(EIO\)"):
        start.muster.waiting_for(21_001)


def test_counters_that_answer_after_all_can_be_read(make: Any) -> None:
    """Else a card would be soaked for 48 h and end inconclusive by the first answer alone."""
    start = Start(make, ecc=Reading.unreadable("EBUSY"))
    start.muster.take_event(ready("gpu0"))
    start.counters("gpu0", corrected=1, uncorrected=0)
    assert start.muster.waiting_for(2_000) == []
    (device,) = start.muster.info_at_t0().devices
    assert (device.ecc, device.ecc_baseline["ras/umc/corrected"].value) == (Reading.ok(1.0), 1.0)


@pytest.mark.parametrize("options", [{"ecc": Reading.unsupported("no RAS")}, {"required": False}])
def test_no_baseline_is_waited_for(make: Any, options: Any) -> None:
    start = Start(make, **options)
    start.muster.take_event(ready("gpu0"))
    assert start.muster.waiting_for(1_000) == []
    assert start.muster.info_at_t0().devices[0].ecc_baseline == {}


def test_the_last_baseline_before_t0_counts(make: Any) -> None:
    start = Start(make)
    start.counters("gpu0", corrected=1, uncorrected=0)
    start.counters("gpu0", corrected=4, uncorrected=0)
    start.muster.take_event(ready("gpu0"))
    assert start.muster.waiting_for(1_000) == []
    assert start.muster.info_at_t0().devices[0].ecc_baseline["ras/umc/corrected"].value == 4


@pytest.mark.parametrize("kind", sorted(kind for kind, effect in KINDS.items() if effect.criterion))
def test_what_would_be_a_fault_of_the_load_refuses_the_start(make: Any, kind: str) -> None:
    with pytest.raises(CannotRun, match=f"gpu0: the load does not start: {kind.replace('_', ' ')}: why"):
        Start(make).muster.take_event(Happening(kind, 0, "gpu0", "why"))


@pytest.mark.parametrize("kind", sorted(k for k, effect in KINDS.items() if effect.state is State.FAIL))
def test_a_card_that_is_lost_before_t0_refuses_the_start(make: Any, kind: str) -> None:
    """Its run would begin with a fail that is none of this run."""
    with pytest.raises(CannotRun, match="why"):
        Start(make).muster.take_reading(Happening(kind, 0, "gpu0", "why"))


def test_what_is_only_told_is_kept_for_the_run(make: Any) -> None:
    start = Start(make)
    start.muster.take_reading(Happening("sampler_restarted", 5))
    start.muster.take_event(Happening("worker_restarted", 6, "gpu0"))
    assert [h.kind for h in start.muster.happened] == ["sampler_restarted", "worker_restarted"]


def showing(gpu: str, at_ms: int, utilisation_pct: float, power_w: float) -> Poll:
    values = {Quantity.UTILISATION_PCT: utilisation_pct, Quantity.POWER_W: power_w}
    return Poll(gpu, at_ms, {quantity: Reading.ok(value) for quantity, value in values.items()})


def burst(gpu: str) -> Ready:
    facts = {"burst": {"began_boot_ms": 2_000, "ended_boot_ms": 5_000, "n_steps": 300}}
    return replace(ready(gpu, 9_000), facts=facts)


def test_the_burst_of_load_has_to_show_on_the_card_that_is_read(make: Any) -> None:
    """A03: the worker runs on one card, telemetry reads another, which stays idle."""
    start = Start(make, 2, required=False)
    for at_ms in (1_000, 3_000, 4_000, 6_000):
        loaded = 2_000 < at_ms < 5_000
        start.muster.take_reading(showing("gpu0", at_ms, 100 if loaded else 0, 600 if loaded else 80))
        start.muster.take_reading(showing("gpu1", at_ms, 0, 80))
    for gpu in start.gpus:
        start.muster.take_event(burst(gpu))
    assert start.muster.waiting_for(9_100) == ["a sign of load on gpu1"]
    with pytest.raises(CannotRun, match="gpu1: the load ran and this card's telemetry shows 0 %"):
        start.muster.waiting_for(16_000)


def test_a_card_that_shows_the_load_may_start(make: Any) -> None:
    start = Start(make, required=False)
    start.muster.take_reading(showing("gpu0", 1_000, 0, 80))
    start.muster.take_reading(showing("gpu0", 4_000, 99, 610))
    start.muster.take_event(burst("gpu0"))
    assert start.muster.waiting_for(9_100) == []


def test_utilisation_without_power_is_no_sign_of_load(make: Any) -> None:
    """A06: the busy figure is stuck, the power is not where it would be."""
    start = Start(make, required=False)
    start.muster.take_reading(showing("gpu0", 1_000, 99, 80))
    start.muster.take_reading(showing("gpu0", 4_000, 99, 25))
    start.muster.take_event(burst("gpu0"))
    with pytest.raises(CannotRun, match="not on the same card"):
        start.muster.waiting_for(16_000)
