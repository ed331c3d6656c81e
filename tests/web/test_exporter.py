"""/metrics says what the contract names, and nothing that is not known."""

from __future__ import annotations

import logging
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from soak import __version__
from soak.core.records import Reading, State, TensorError
from soak.core.snapshot import CardSnapshot, Snapshot
from soak.exporter import FAMILIES, Exporter, Family
from soak.exporter.exporter import prefers_openmetrics
from soak.exporter.families import Kind
from tests.web.scenes import GPU, SECOND, at_hour, before_t0, played, with_everything

CONTRACT = {
    "soak_build_info": {"version", "python"},
    "soak_run_info": {"run_id", "profile", "seed", "kernel", "simulated", "rack"},
    "soak_run_state": {"run_id", "soak_run_state"},
    "soak_run_planned_seconds": {"run_id"},
    "soak_run_elapsed_seconds": {"run_id"},
    "soak_run_observed_seconds": {"run_id"},
    "soak_run_verdict": {"run_id", "soak_run_verdict"},
    "soak_verdict": {"run_id", "gpu", "soak_verdict"},
    "soak_criterion": {"run_id", "gpu", "criterion", "required", "soak_criterion"},
    "soak_criterion_value": {"run_id", "gpu", "criterion", "required"},
    "soak_criterion_threshold": {"run_id", "gpu", "criterion", "required"},
    "soak_gpu_info": {"gpu", "index", "uuid", "model", "arch", "driver", "vbios"},
    "soak_gpu_up": {"gpu"},
    "soak_gpu_ecc_supported": {"gpu"},
    "soak_gpu_utilization_ratio": {"gpu"},
    "soak_gpu_utilization_in_spec_ratio": {"gpu"},
    "soak_gpu_temperature_celsius": {"gpu", "sensor"},
    "soak_gpu_ecc_errors_total": {"gpu", "kind"},
    "soak_gpu_memory_free_bytes": {"gpu"},
    "soak_gpu_memory_total_bytes": {"gpu"},
    "soak_gpu_power_watts": {"gpu"},
    "soak_gpu_clock_hertz": {"gpu", "domain"},
    "soak_gpu_throttle_seconds_total": {"gpu", "reason"},
    "soak_load_iterations_total": {"gpu"},
    "soak_load_flops_total": {"gpu"},
    "soak_load_seq_len": {"gpu"},
    "soak_load_rotations_total": {"gpu"},
    "soak_gradient_max_abs_diff": {"gpu", "tensor"},
    "soak_gradient_checks_total": {"gpu", "result"},
    "soak_integrity_checks_total": {"gpu"},
    "soak_integrity_mismatches_total": {"gpu"},
    "soak_incidents_total": {"gpu", "kind"},
    "soak_worker_restarts_total": {"gpu"},
    "soak_sensor_errors_total": {"gpu", "source"},
    "soak_sensor_read_seconds": {"gpu"},
    "soak_last_progress_timestamp_seconds": {"gpu"},
    "soak_last_sample_timestamp_seconds": {"gpu"},
    "soak_scheduler_missed_total": {"job"},
}
"""Section 4 of the product's contract: every name, with its labels."""

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Sample = tuple[str, dict[str, str], float]


def samples(snapshot: Snapshot | None, age_ms: int = 0) -> list[Sample]:
    _, page = Exporter().render(snapshot, age_ms, "")
    return [(s.name, s.labels, s.value) for family in parse_text(page.decode()) for s in family.samples]


def values(found: list[Sample], name: str, **labels: str) -> list[float]:
    return [value for n, have, value in found if n == name and labels.items() <= have.items()]


def one(found: list[Sample], name: str, **labels: str) -> float:
    (value,) = values(found, name, **labels)
    return value


def card(snapshot: Snapshot, index: int = 0, **changes: object) -> Snapshot:
    """The snapshot with a card changed."""
    cards = list(snapshot.cards)
    cards[index] = replace(cards[index], **changes)
    return replace(snapshot, cards=tuple(cards))


SNAPSHOTS = {
    "healthy, at work": lambda: at_hour("healthy", 20),
    "healthy, over": lambda: played("healthy")[-1],
    "failed": lambda: played("hang")[-1],
    "card lost": lambda: at_hour("lost-gpu", 20, n_gpus=2),
    "eight cards": lambda: at_hour("healthy", 20, n_gpus=8),
    "no ECC": lambda: at_hour("no-ecc-sensor", 20),
    "interrupted": lambda: next(s for s in reversed(played("restart")) if s.attempt.number == 2),
    "before t0": before_t0,
    "everything": with_everything,
}


@pytest.fixture(params=list(SNAPSHOTS))
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    return SNAPSHOTS[request.param]()


def test_the_table_is_the_contract() -> None:
    assert {family.name for family in FAMILIES} | {"soak_build_info"} == CONTRACT.keys()
    for family in FAMILIES:
        own = {*family.labels, family.name} if family.kind is Kind.STATES else set(family.labels)
        assert own == CONTRACT[family.name] or (family.kind is Kind.FACTS and own < CONTRACT[family.name])


def test_a_scrape_says_every_name_of_the_contract_with_its_labels() -> None:
    found = {name: set(labels) for name, labels, _ in samples(with_everything())}
    assert found == CONTRACT


def test_a_scrape_says_nothing_else(snapshot: Snapshot) -> None:
    found = samples(snapshot)
    assert found
    for name, labels, _ in found:
        assert set(labels) == CONTRACT[name]


def test_no_series_is_said_twice(snapshot: Snapshot) -> None:
    found = [(name, *sorted(labels.items())) for name, labels, _ in samples(snapshot)]
    assert len(found) == len(set(found))


def test_openmetrics_says_the_same(snapshot: Snapshot) -> None:
    kind, page = Exporter().render(snapshot, 0, OPENMETRICS)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    families: list[Metric] = list(parse_openmetrics(page.decode()))  # strict: it refuses what is not in order
    assert [(s.name, s.labels, s.value) for f in families for s in f.samples] == samples(snapshot)
    kinds = {f.name: f.type for f in families}
    assert kinds["soak_run_verdict"] == "stateset"
    assert kinds["soak_build"] == "info"
    assert kinds.get("soak_load_iterations", "counter") == "counter"


def test_both_formats_are_what_the_library_writes(snapshot: Snapshot) -> None:
    exporter = Exporter()
    device = replace(snapshot.cards[0].device, model='a "b"\\\nc \u2014 \\n ✓')
    evil = card(snapshot, device=device)
    assert exporter.render(evil, 0, "")[1] == generate_latest(exporter.registry)
    assert exporter.render(evil, 0, OPENMETRICS)[1] == generate_openmetrics(exporter.registry)


def test_a_healthy_run_in_numbers() -> None:
    snapshot = at_hour("healthy", 20)
    found = samples(snapshot)
    assert one(found, "soak_run_planned_seconds") == 48 * 3600
    assert one(found, "soak_run_elapsed_seconds") == snapshot.elapsed_ms / 1000
    assert one(found, "soak_run_observed_seconds") == pytest.approx(snapshot.elapsed_ms / 1000, abs=2)
    assert one(found, "soak_gpu_utilization_ratio", gpu=GPU) == pytest.approx(0.99)
    assert one(found, "soak_gpu_utilization_in_spec_ratio") == pytest.approx(1, abs=1e-4)
    assert one(found, "soak_gpu_temperature_celsius", sensor="edge") == pytest.approx(72, abs=1)
    assert values(found, "soak_gpu_temperature_celsius", sensor="core") == []
    assert one(found, "soak_gpu_memory_free_bytes") == 12 * 2**30
    assert one(found, "soak_gpu_clock_hertz", domain="memory") == 1e9
    assert one(found, "soak_gpu_ecc_errors_total", kind="corrected") == 0
    assert one(found, "soak_gpu_throttle_seconds_total", reason="thermal") == 0
    assert values(found, "soak_gpu_throttle_seconds_total", reason="power") == []  # it does not tell
    assert snapshot.shape is not None
    assert one(found, "soak_load_rotations_total") == snapshot.shape.index + 1
    assert one(found, "soak_load_seq_len") == snapshot.shape.seq_len
    assert one(found, "soak_gradient_max_abs_diff", tensor="dq") == pytest.approx(4.2e-4)
    assert one(found, "soak_gradient_checks_total", result="pass") == 21
    assert one(found, "soak_scheduler_missed_total", job="rotate") == 0
    assert one(found, "soak_run_info", rack='r7 "left"', simulated="true", seed="7") == 1
    assert one(found, "soak_build_info", version=__version__) == 1


def test_what_a_reading_costs() -> None:
    snapshot = at_hour("healthy", 20, n_gpus=2)
    poll = snapshot.cards[0].poll
    assert poll is not None
    found = samples(card(snapshot, poll=replace(poll, cost_ms=2.5)))
    assert one(found, "soak_sensor_read_seconds") == 0.0025  # the other card's poll was not read by anybody


@pytest.mark.parametrize(
    ("snapshot_of", "state", "verdict"),
    [
        (before_t0, None, "inconclusive"),
        (lambda: at_hour("healthy", 20), "running", "inconclusive"),
        (lambda: played("healthy")[-1], "completed", "pass"),
        (lambda: at_hour("hang", 20), "running", "fail"),
        (lambda: played("lost-gpu")[-1], "failed_to_run", "fail"),
        (lambda: replace(played("healthy")[-1], state="interrupted"), "interrupted", "pass"),
    ],
)
def test_states_are_state_sets(snapshot_of: object, state: str | None, verdict: str) -> None:
    found = samples(snapshot_of())  # type: ignore[operator]  # a parameter
    states = {labels["soak_run_state"]: value for name, labels, value in found if name == "soak_run_state"}
    assert states.keys() == {"running", "completed", "interrupted", "failed_to_run"}
    assert [name for name, value in states.items() if value] == ([state] if state else [])
    for name in ("soak_run_verdict", "soak_verdict"):
        set_of = {labels[name]: value for n, labels, value in found if n == name}
        assert set_of == {each: float(each == verdict) for each in ("pass", "fail", "inconclusive")}


def test_criteria_have_state_value_and_threshold() -> None:
    found = samples(at_hour("ecc-at-32h", 40))
    where = {"gpu": GPU, "criterion": "ecc", "required": "true", "run_id": "sim-ecc-at-32h"}
    assert one(found, "soak_criterion", soak_criterion="fail", **where) == 1
    assert one(found, "soak_criterion", soak_criterion="unknown", **where) == 0
    assert one(found, "soak_criterion_value", **where) == 1
    assert one(found, "soak_criterion_threshold", **where) == 0
    assert one(found, "soak_gpu_ecc_errors_total", kind="corrected") == 1


def test_of_a_lost_card_only_what_was_found_out_remains() -> None:
    found = samples(at_hour("lost-gpu", 20, n_gpus=2))
    assert one(found, "soak_gpu_up", gpu=GPU) == 0
    assert one(found, "soak_gpu_up", gpu=SECOND) == 1
    of_lost = {name for name, labels, _ in found if labels.get("gpu") == GPU}
    of_other = {name for name, labels, _ in found if labels.get("gpu") == SECOND}
    stopped = of_other - of_lost
    assert stopped == {
        name
        for name in CONTRACT
        if name.startswith(("soak_gpu_", "soak_load_"))
        and name not in ("soak_gpu_up", "soak_gpu_info", "soak_gpu_ecc_supported")
    }
    t0_s = 1_795_000_000  # of the virtual wall clock
    assert one(found, "soak_last_sample_timestamp_seconds", gpu=GPU) == pytest.approx(t0_s + 12 * 3600, abs=2)
    assert one(found, "soak_last_progress_timestamp_seconds", gpu=GPU) == pytest.approx(
        t0_s + 12 * 3600, abs=2
    )
    assert one(found, "soak_last_sample_timestamp_seconds", gpu=SECOND) > t0_s + 20 * 3600 - 2
    assert one(found, "soak_incidents_total", gpu=GPU, kind="device_lost") == 1
    assert one(found, "soak_verdict", gpu=GPU, soak_verdict="fail") == 1


def test_before_t0_nothing_is_counted() -> None:
    found = samples(before_t0())
    names = {name for name, _, _ in found}
    assert names == {
        "soak_build_info",
        "soak_run_info",
        "soak_run_state",
        "soak_run_planned_seconds",
        "soak_run_elapsed_seconds",
        "soak_run_observed_seconds",
        "soak_run_verdict",
        "soak_verdict",
        "soak_gpu_info",
        "soak_gpu_up",
        "soak_gpu_ecc_supported",
    }


def test_before_the_first_snapshot_the_program_says_who_it_is() -> None:
    assert [name for name, _, _ in samples(None)] == ["soak_build_info"]


def test_a_card_without_ecc_has_no_count_of_errors() -> None:
    found = samples(at_hour("no-ecc-sensor", 20))
    assert one(found, "soak_gpu_ecc_supported") == 0
    assert values(found, "soak_gpu_ecc_errors_total") == []


def test_whether_there_is_ecc_is_absent_where_it_could_not_be_read() -> None:
    snapshot = at_hour("healthy", 20)
    device = replace(snapshot.cards[0].device, ecc=Reading.unreadable("EIO"))
    assert values(samples(card(snapshot, device=device)), "soak_gpu_ecc_supported") == []


READINGS = [f.name for f in FAMILIES if re.match(r"soak_gpu_(util.*_ratio$|temp|mem|power|clock)", f.name)]


@pytest.mark.parametrize("name", [name for name in READINGS if "in_spec" not in name])
def test_an_unreadable_quantity_is_absent(name: str) -> None:
    snapshot = at_hour("healthy", 20)
    poll = snapshot.cards[0].poll
    assert poll is not None
    unread = replace(poll, readings={q: Reading.unreadable("EIO") for q in poll.readings})
    assert values(samples(snapshot), name)
    assert values(samples(card(snapshot, poll=unread)), name) == []


def test_a_reading_that_is_too_old_is_not_known_any_more() -> None:
    snapshot = at_hour("healthy", 20)
    poll = snapshot.cards[0].poll
    assert poll is not None
    for silent_ms, shown in ((9_000, True), (11_000, False)):
        old = card(snapshot, poll=replace(poll, boot_ms=snapshot.boot_ms - silent_ms))
        assert bool(values(samples(old), "soak_gpu_power_watts")) is shown
    exporter = Exporter()
    _, fresh = exporter.render(snapshot, 0, "")
    _, stale = exporter.render(snapshot, 60_000, "")
    assert b"soak_gpu_power_watts" in fresh
    assert b"soak_gpu_power_watts" not in stale
    assert b"soak_run_verdict" in stale
    assert b"soak_last_sample_timestamp_seconds" in stale


def test_a_slow_poll_is_current_for_two_intervals() -> None:
    snapshot = at_hour("healthy", 20)
    poll = snapshot.cards[0].poll
    assert poll is not None
    slow = replace(snapshot, protocol=replace(snapshot.protocol, poll_ms=60_000))
    old = card(slow, poll=replace(poll, boot_ms=snapshot.boot_ms - 110_000))
    assert values(samples(old), "soak_gpu_power_watts")


def test_a_gradient_with_nan_is_infinitely_far_and_one_not_compared_is_absent() -> None:
    snapshot = at_hour("healthy", 20)
    check = snapshot.cards[0].check
    assert check is not None
    errors = (
        TensorError("dq", 10, 1, 1e-9, 1e-9, 1.0),
        TensorError("dk", 0, 0, math.nan, math.nan, math.nan),
        TensorError("dv", 10, 0, 1e-4, 1e-4, 1.0),
        TensorError("o", 10, 0, 1e-4, 1e-4, 1.0),
    )
    found = samples(card(snapshot, check=replace(check, errors=errors)))
    got = {labels["tensor"]: v for name, labels, v in found if name == "soak_gradient_max_abs_diff"}
    assert got == {"dq": math.inf, "dv": 1e-4}


def test_throttling_by_reason_is_summed_over_slots() -> None:
    found = samples(card(at_hour("healthy", 20), throttle_ms={"thermal": 1500, "power": 90_000}))
    assert one(found, "soak_gpu_throttle_seconds_total", reason="thermal") == 1.5
    assert one(found, "soak_gpu_throttle_seconds_total", reason="power") == 90


def test_counters_never_fall_within_an_attempt() -> None:
    before: dict[tuple[object, ...], float] = {}
    for snapshot in played("hang", 2, hours=4, every_ms=1):
        for name, labels, value in samples(snapshot):
            key = (name, *sorted(labels.items()))
            if name.endswith("_total"):
                assert value >= before.get(key, 0.0), key
                before[key] = value
    assert before


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;version=1.0.0;q=0.2,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nonsense", False),
        (";;;,,q=,=;" * 50, False),
    ],
)
def test_which_format_an_accept_header_means(accept: str, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics
    kind, page = Exporter().render(at_hour("healthy", 20), 0, accept)
    assert kind.startswith("application/openmetrics-text" if openmetrics else "text/plain; version=0.0.4")
    assert page.endswith(b"# EOF\n") is openmetrics


def test_a_snapshot_is_rendered_once_a_format() -> None:
    exporter, snapshot = Exporter(), at_hour("healthy", 20)
    text, openmetrics = exporter.render(snapshot, 0, "")[1], exporter.render(snapshot, 10, OPENMETRICS)[1]
    assert exporter.render(snapshot, 900, "")[1] is text
    assert exporter.render(snapshot, 900, OPENMETRICS)[1] is openmetrics
    assert exporter.render(replace(snapshot), 0, "")[1] is not text


def test_a_family_that_cannot_be_made_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> Iterator[tuple[tuple[str], float]]:
        yield (GPU,), 1.0
        raise ValueError("what was this again")

    exporter = Exporter((*FAMILIES, Family("soak_broken", Kind.GAUGE, "Broken.", ("gpu",), broken)))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            _, page = exporter.render(at_hour("healthy", 20), 0, "")
    assert page == Exporter().render(at_hour("healthy", 20), 0, "")[1]
    assert [r.message for r in caplog.records if "soak_broken" in r.message] == [
        "metric soak_broken cannot be made and is left out: ValueError('what was this again')"
    ]


def test_a_label_may_hold_any_text() -> None:
    snapshot = at_hour("healthy", 20)
    device = replace(snapshot.cards[0].device, model='a "b"\\\nc \u2014 ✓', driver=None)
    evil = card(snapshot, device=device)
    (labels,) = (labels for name, labels, _ in samples(evil) if name == "soak_gpu_info")
    assert labels["model"] == device.model
    assert labels["driver"] == ""


@pytest.mark.parametrize("name", list(SNAPSHOTS))
def test_promtool_finds_nothing_to_object_to(name: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    _, page = Exporter().render(SNAPSHOTS[name](), 0, "")
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_every_metric_is_documented_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(soak_\w+)`", text))
    assert documented == CONTRACT.keys()


def test_a_criterion_that_has_no_value_yet_has_none_here() -> None:
    snapshot = at_hour("healthy", 20)
    findings = tuple(
        replace(f, value=None, state=State.UNKNOWN) if f.criterion == "ecc" else f
        for f in snapshot.cards[0].findings
    )
    changed: CardSnapshot = replace(snapshot.cards[0], findings=findings)
    found = samples(replace(snapshot, cards=(changed,)))
    assert values(found, "soak_criterion_value", criterion="ecc") == []
    assert one(found, "soak_criterion", criterion="ecc", soak_criterion="unknown") == 1
