"""The checklist from facts alone: what is well says so, what is not says what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak.config import load_profile, parse, resolve
from soak.core.records import Device, Quantity, Reading
from soak.doctor.checks import CHECKS, judged
from soak.doctor.facts import NO_CARD, CardLook, Facts, Holder, Intent, Pairing, Stack, Told
from soak.doctor.line import Level, Line, exit_code
from soak.telemetry.ras import ASLEEP

GPU, OTHER = "0000:33:00.0", "0000:43:00.0"
Q = Quantity


def an_mi50(gpu: str = GPU, **changed: Any) -> Device:
    return replace(
        Device(
            gpu,
            "amd",
            model="AMD Instinct MI50 32GB",
            arch="gfx906",
            driver="amdgpu 6.7.0",
            vbios="113-D1631700-111",
            memory_total_bytes=32 << 30,
            temperature_sensor=Q.TEMPERATURE_EDGE_C,
            slowdown_c=100.0,
            supported={
                Q.UTILISATION_PCT: Reading.ok(0.0),
                Q.TEMPERATURE_EDGE_C: Reading.ok(40.0),
                Q.MEMORY_FREE_BYTES: Reading.ok(31.0 * (1 << 30)),
            },
            ecc=Reading.ok(1.0),
            ecc_baseline={"ras/umc/corrected": Reading.ok(0.0)},
        ),
        **changed,
    )


def means(utilisation: float, power: float | None = None, **more: float) -> dict[Quantity, float]:
    found = {Q.UTILISATION_PCT: utilisation} | {Quantity(name): value for name, value in more.items()}
    return found if power is None else found | {Q.POWER_W: power}


def healthy(*devices: Device, profile: str = "mi50") -> Facts:
    devices = devices or (an_mi50(),)
    config = resolve(parse({"profile": profile, "data_dir": "/data"}, {}), devices, drawn_seed=0)
    assert load_profile(profile).name == config.profile
    gpus = [device.gpu for device in devices]
    rest = {gpu: means(0.0, 20.0) for gpu in gpus}
    return Facts(
        Intent(devices, protocol=config.protocol(), profile=profile),
        {("data folder", None): Told("/data"), **{("held", gpu): Told("by no other soak") for gpu in gpus}},
        {gpu: CardLook(225.0, 225.0, 16, 16, 8.0, 8.0) for gpu in gpus},
        stacks={gpu: Stack("2.9", None, "6.3", "3.8.0", (gpu,), kernel="k", compile_s=1.0) for gpu in gpus},
        pairings={
            gpu: Pairing(rest, rest | {gpu: means(99.0, 200.0, pcie_width=16.0, pcie_speed_gts=8.0)}, 3000, 9)
            for gpu in gpus
        },
    )  # fmt: skip


def only(facts: Facts, check: str) -> Line:
    """The one line of a check."""
    (line,) = [line for line in judged(facts) if line.check == check]
    return line


def look(facts: Facts, **changed: object) -> Facts:
    return replace(facts, cards={GPU: replace(facts.cards[GPU], **changed)})


def stack(facts: Facts, **changed: object) -> Facts:
    return replace(facts, stacks={GPU: replace(facts.stacks[GPU], **changed)})


def test_a_healthy_machine_is_well():
    lines = judged(healthy())
    assert {line.level for line in lines} == {Level.OK}
    assert exit_code(lines) == 0
    assert not any(line.remedy for line in lines)


def test_names_are_given_once_and_lines_carry_them():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert {line.check for line in judged(healthy())} <= set(names)


def test_exit_codes():
    levels = {Level.OK: 0, Level.SKIP: 0, Level.WARN: 3, Level.FAIL: 1}
    for level, code in levels.items():
        assert exit_code([Line("a", Level.OK, ""), Line("b", level, "")]) == code
    assert exit_code([Line("a", Level.WARN, ""), Line("b", Level.FAIL, "")]) == 1


def test_no_card_is_a_fail_and_nothing_is_loaded():
    facts = Facts(Intent(refusal="No usable GPU."), stacks={NO_CARD: Stack("2.9", triton="3.8.0")})
    assert only(facts, "card").level is Level.FAIL
    assert only(facts, "pairing").level is Level.SKIP
    assert only(facts, "triton").says == "Triton 3.8.0"


SPOILT = {
    "a Radeon VII flash": (
        healthy(an_mi50(notes=("carries Radeon VII firmware (device 0x66af)",))),
        "card", Level.WARN, "Radeon VII",
    ),
    "a silent card": (
        healthy(an_mi50(supported={Quantity.UTILISATION_PCT: Reading.unreadable("no answer in 2 s")})),
        "sensors", Level.FAIL, "utilisation_pct: no answer in 2 s",
    ),
    "ECC absent": (
        healthy(an_mi50(ecc=Reading.unsupported("no ras folder"))), "ecc", Level.FAIL, "no ras folder",
    ),
    "ECC unreadable": (
        healthy(an_mi50(ecc=Reading.unreadable("EPERM"))), "ecc", Level.FAIL, "EPERM",
    ),
    "no memory free": (
        healthy(an_mi50(supported=an_mi50().supported | {Quantity.MEMORY_FREE_BYTES: Reading.ok(1e9)})),
        "memory", Level.FAIL, "0.9 GiB are free",
    ),
    "a low limit": (healthy(an_mi50(slowdown_c=75.0)), "temperature", Level.WARN, "within the band"),
    "an untold limit": (healthy(an_mi50(slowdown_c=None)), "temperature", Level.WARN, "not told"),
    "a lowered cap": (look(healthy(), power_cap_w=150.0), "power cap", Level.WARN, "150 W"),
    "a bad page": (look(healthy(), troubles=("1 bad page",)), "memory history", Level.WARN, "bad page"),
    "a held clock": (look(healthy(), restraints=("level is low",)), "settings", Level.WARN, "low"),
    "no persistence": (look(healthy(), persistence=False), "persistence", Level.WARN, "forgets"),
    "another user": (
        look(healthy(), holders=(Holder(7, "python3", 3 << 30),)),
        "users", Level.WARN, "python3 (7) with 3.0 GiB",
    ),
    "another soak": (
        replace(healthy(), places={("held", GPU): Told("", "by another soak: process 7")}),
        "held", Level.FAIL, "process 7",
    ),
    "no torch": (stack(healthy(), torch=None, stage="torch", fault="No module"), "torch", Level.FAIL, "No"),
    "no triton": (stack(healthy(), stage="triton", fault="No module"), "triton", Level.FAIL, "No module"),
    "not offered": (
        stack(healthy(), stage="card", fault="PyTorch offers no GPU", offline="Triton compiles for gfx906"),
        "runtime", Level.FAIL, "offers no GPU",
    ),
    "not compiled": (stack(healthy(), stage="compile", fault="unsupported"), "triton", Level.FAIL, "unsup"),
    "a full disk": (
        replace(healthy(), places={("data folder", None): Told("", "/data has 3 MiB free")}),
        "data folder", Level.FAIL, "3 MiB",
    ),
    "no kernel log": (
        replace(healthy(), places={("kernel log", None): Told("", "EPERM")}),
        "kernel log", Level.WARN, "EPERM",
    ),
    "a narrow link": (look(healthy(), link_width_max=32), "pcie link", Level.WARN, "x32"),
    "a slow link": (look(healthy(), link_speed_max_gts=16.0), "pcie link", Level.WARN, "16 GT/s"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_one_thing_that_is_not_well(name: str):
    facts, check, level, words = SPOILT[name]
    line = only(facts, check)
    assert line.level is level
    assert words in line.says
    assert line.gpu == GPU or line.gpu is None
    table = {check.name: check.remedy for check in CHECKS}
    assert line.remedy or table[line.check] == ""


def test_a_card_that_sleeps_is_woken_by_a_run():
    line = only(healthy(an_mi50(ecc=Reading.unreadable(f"{ASLEEP}: 'suspended'"))), "ecc")
    assert line.level is Level.WARN
    assert "A run wakes it" in line.remedy


def test_an_absent_ecc_may_be_waived_or_accepted():
    absent = healthy(an_mi50(ecc=Reading.unsupported("no ras folder")))
    waived = replace(absent, intent=replace(absent.intent, waived=("ecc",)))
    accepted = replace(absent, intent=replace(absent.intent, accept_inconclusive=True))
    assert only(waived, "ecc").level is Level.OK
    assert "waived" in only(waived, "ecc").says
    assert only(accepted, "ecc").level is Level.WARN


def test_what_cannot_be_judged_is_what_a_run_refuses():
    silent = {Quantity.UTILISATION_PCT: Reading.unsupported("MIG is on")}
    facts = healthy(an_mi50(supported=silent))
    assert only(facts, "reach").level is Level.FAIL
    assert "MIG" in only(facts, "reach").says
    accepted = replace(facts, intent=replace(facts.intent, accept_inconclusive=True))
    assert only(accepted, "reach").level is Level.WARN


def test_counts_from_before_are_shown_and_are_no_fault():
    old = {"aggregate/all/corrected": Reading.ok(57.0), "volatile/all/corrected": Reading.ok(0.0)}
    line = only(healthy(an_mi50(ecc_baseline=old)), "ecc")
    assert line.level is Level.OK
    assert "aggregate/all/corrected 57" in line.says


def test_where_a_card_sits_is_told():
    assert only(look(healthy(), numa_node=1), "pcie link").says == "x16 at 8 GT/s, NUMA node 1"


def test_a_link_is_not_blamed_for_resting():
    """An idle card may slow its link down; only a load tells."""
    facts = look(healthy(), link_speed_gts=2.5)
    rested = replace(facts, pairings={GPU: Pairing(fault="the load does not start")})
    assert only(rested, "pcie link").level is Level.OK
    assert "at rest" in only(rested, "pcie link").says


def test_triton_may_compile_for_a_card_out_of_reach():
    out_of_reach = stack(
        healthy(), stage="card", fault="no GPU", offline="Triton compiles for gfx906 (forward)"
    )
    assert only(out_of_reach, "triton").level is Level.OK
    neither = stack(
        healthy(), stage="card", fault="no GPU", offline="Triton does not compile for gfx906 either: x"
    )
    assert only(neither, "triton").level is Level.FAIL


class TestPairing:
    def line(self, pairing: Pairing, **changed: object) -> Line:
        facts = healthy(an_mi50(), an_mi50(OTHER))
        facts = replace(facts, pairings=facts.pairings | {GPU: pairing})
        facts = replace(facts, stacks=facts.stacks | {GPU: replace(facts.stacks[GPU], **changed)})
        (line,) = [line for line in judged(facts) if line.check == "pairing" and line.gpu == GPU]
        return line

    def test_its_own_sensors_rise(self):
        rest = {GPU: means(0, 25), OTHER: means(0, 25)}
        line = self.line(Pairing(rest, rest | {GPU: means(100, 200)}))
        assert line.level is Level.OK
        assert line.says == "utilisation 0 → 100 %; power 25 → 200 W"

    def test_another_card_rises(self):
        rest = {GPU: means(0, 25), OTHER: means(0, 25)}
        line = self.line(Pairing(rest, rest | {OTHER: means(100, 200)}))
        assert line.level is Level.FAIL
        assert f"{OTHER} rose instead" in line.says

    def test_power_stays(self):
        """99 % at the power of a card at rest: busy with nothing."""
        line = self.line(Pairing({GPU: means(0, 25)}, {GPU: means(99, 26)}))
        assert line.level is Level.WARN
        assert "power did not rise" in line.says

    def test_power_that_is_not_told_is_not_asked_for(self):
        assert self.line(Pairing({GPU: means(0)}, {GPU: means(99)})).level is Level.OK

    def test_busy_before(self):
        line = self.line(Pairing({GPU: means(99, 25)}, {GPU: means(99, 200)}))
        assert line.level is Level.WARN
        assert "no rise can be seen" in line.says

    def test_no_reading(self):
        assert self.line(Pairing({}, {GPU: means(99)})).level is Level.WARN

    def test_a_load_that_ends_is_a_fail(self):
        line = self.line(Pairing(fault="died by signal 11"), stage="load")
        assert line.level is Level.FAIL
        assert "signal 11" in line.says

    def test_a_load_that_does_not_start_is_told_elsewhere(self):
        line = self.line(Pairing(fault="the load does not start"), stage="compile")
        assert line.level is Level.SKIP


def test_a_card_that_could_not_be_looked_at_says_so():
    facts = replace(healthy(), cards={}, card_faults={GPU: "no answer in 20 s"})
    assert [line.says for line in judged(facts) if line.check == "card" and line.level is Level.WARN] == [
        "its settings could not be looked at: no answer in 20 s"
    ]


def test_unknown_settings_give_no_line():
    lines = judged(replace(healthy(), cards={GPU: CardLook()}, pairings={GPU: Pairing(fault="x")}))
    assert not {"power cap", "pcie link", "persistence"} & {line.check for line in lines}
