"""Runs as the store would hold them, small and made by rule, and the documents of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from soak.core.criteria import NAMES
from soak.core.protocol import Limits, Protocol
from soak.core.records import (
    Attempt,
    Closing,
    Device,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Poll,
    Quantity,
    Reading,
    Rotation,
    RunInfo,
    RunRecord,
    Slot,
    Stats,
    Stretch,
    TensorError,
)
from soak.core.snapshot import CardSnapshot, Snapshot
from soak.core.verdict import Judgement, judge
from soak.report.assemble import assemble
from soak.report.document import Document

MINUTE, HOUR = 60_000, 3_600_000
T0 = 1_795_000_000_000
GPU = "0000:33:00.0"
EXPECTED = Path(__file__).parent / "expected"


def protocol(hours: float = 4, **changes: object) -> Protocol:
    plan = Protocol(
        duration_ms=int(hours * HOUR),
        rotate_ms=10 * MINUTE,
        check_ms=HOUR,
        sample_ms=10 * MINUTE,
        poll_ms=1000,
        warmup_ms=30 * MINUTE,
        seq_len_min=512,
        seq_len_max=4096,
        seed=7,
        limits=Limits(required=frozenset(NAMES)),
    )
    return replace(plan, **changes)


def mi50(gpu: str = GPU, index: int = 0, **changes: object) -> Device:
    card = Device(
        gpu=gpu,
        vendor="amd",
        index=index,
        model="AMD Instinct MI50",
        arch="gfx906",
        uuid=f"GPU-5d{index:02x}c0ffee",
        driver="amdgpu 6.8.0",
        vbios="113-D1631400-X11",
        kernel="flash_v2",
        kernel_reason="the one for every card",
        load={"largest_step_ms": 412.5},
        memory_total_bytes=16 * 2**30,
        temperature_sensor=Quantity.TEMPERATURE_EDGE_C,
        slowdown_c=100.0,
        power_cap_w=225.0,
        supported={
            Quantity.UTILISATION_PCT: Reading.ok(0),
            Quantity.PCIE_REPLAYS: Reading.unsupported("no such file"),
        },
        ecc=Reading.ok(1),
        ecc_baseline={"ras/umc/corrected": Reading.ok(57), "ras/umc/uncorrected": Reading.ok(2)},
    )
    return replace(card, **changes)


def wobble(*key: object) -> float:
    """A figure in [-1, 1] that the key decides."""
    return math.sin(sum((i + 1) * ord(c) for i, c in enumerate(str(key))) * 12.9898)


def spread(mean: float, n: int, by: float) -> Stats:
    return Stats(n, mean - by, mean, mean + by, mean - by, mean + by, mean + by / 2)


Change = Callable[[Slot], Slot | None]


def slots_of(plan: Protocol, card: Device, elapsed_ms: int, change: Change, attempt: int = 1) -> list[Slot]:
    """The slots of a healthy card, each passed through `change`; None leaves the row out."""
    found = []
    for index in range(-(-elapsed_ms // plan.sample_ms)):
        start, end = plan.slot_start_ms(index), min(plan.slot_end_ms(index), elapsed_ms)
        n, drift = (end - start) // plan.poll_ms, wobble(card.gpu, index)
        warm = 72 - 30 * math.exp(-index)
        stats = {
            Quantity.UTILISATION_PCT: spread(99.0 + drift / 2, n, 0.5),
            Quantity.TEMPERATURE_EDGE_C: spread(warm + drift, n, 0.8),
            Quantity.TEMPERATURE_JUNCTION_C: spread(warm + 14 + drift, n, 1.5),
            Quantity.POWER_W: spread(210 + 4 * drift, n, 9.0),
            Quantity.CLOCK_CORE_HZ: spread(1.725e9, n, 2e6),
            Quantity.MEMORY_TOTAL_BYTES: spread(16 * 2.0**30, n, 0),
            Quantity.MEMORY_FREE_BYTES: spread(12.4 * 2.0**30, n, 2.0**26),
            Quantity.PCIE_WIDTH: spread(16, n, 0),
        }
        slot = Slot(
            attempt=attempt,
            gpu=card.gpu,
            index=index,
            start_ms=start,
            end_ms=plan.slot_end_ms(index),
            utc_ms=T0 + start,
            closed=end == plan.slot_end_ms(index),
            n_polls=n,
            observed_ms=end - start,
            in_spec_ms=end - start,
            stats=stats,
            ecc={"corrected": 0, "uncorrected": 0},
            ecc_raw={"ras/umc/corrected": 57, "ras/umc/uncorrected": 2},
        )
        changed = change(slot)
        if changed is not None:
            found.append(changed)
    return found


def rotations_of(plan: Protocol, card: Device, elapsed_ms: int, attempt: int = 1) -> list[Rotation]:
    found = []
    for index in range(plan.n_rotations(elapsed_ms)):
        shape = plan.shape(index)
        tflops = (9 if shape.causal else 11) * (1 + 0.05 * math.log2(shape.seq_len / 512))
        tflops *= 1 + 0.002 * wobble(card.gpu, index, "rate")
        flops = int(tflops * 1e9 * (min((index + 1) * plan.rotate_ms, elapsed_ms) - index * plan.rotate_ms))
        found.append(
            Rotation(
                attempt,
                card.gpu,
                index,
                index * plan.rotate_ms,
                shape.seq_len,
                shape.causal,
                shape.seed,
                "flash_v2",
                f"{index:04x}c0de{shape.seq_len:04x}",
                flops // 10**12,
                flops,
            )
        )
    return found


def comparisons_of(rotations: Sequence[Rotation]) -> list[IntegrityCheck]:
    return [IntegrityCheck(r.attempt, r.gpu, r.index, 45, 45, 0, r.start_ms + 9 * MINUTE) for r in rotations]


def checks_of(plan: Protocol, card: Device, elapsed_ms: int, attempt: int = 1) -> list[GradientCheck]:
    found = []
    for index in range(plan.n_checks(elapsed_ms)):
        shape = plan.shape(plan.rotation_index(index * plan.check_ms))
        sizes = (("o", 2e-4), ("dq", 3.1e-4), ("dk", 2.8e-4), ("dv", 1.4e-3))
        errors = tuple(
            TensorError(name, 4 * shape.seq_len * 128, 0, size * (1 + wobble(index, name) / 10), 3e-4, 0.21)
            for name, size in sizes
        )
        found.append(
            GradientCheck(
                attempt,
                card.gpu,
                index,
                index * plan.check_ms,
                index * plan.check_ms + 21_000,
                shape.index,
                shape.seq_len,
                shape.causal,
                shape.seed,
                ((0, 3), (2, 11), (5, 0), (7, 15)),
                errors,
                duration_ms=20_400,
                golden_proved=True,
            )
        )
    return found


@dataclass(frozen=True)
class Scene:
    """A run and when it is looked at."""

    record: RunRecord
    plan: Protocol
    now_utc_ms: int
    offset_min: int = 60

    def document(self) -> Document:
        return assemble(
            self.record, judge(self.record, self.plan), self.plan, self.now_utc_ms, self.offset_min
        )


def info(devices: Sequence[Device], **changes: object) -> RunInfo:
    run = RunInfo(
        run_id="20261118-051640-3f9c",
        created_utc_ms=T0 - 95_000,
        host_id="b4d0",
        profile="mi50",
        profile_reason="auto: every card is gfx906",
        seed=7,
        kernel="flash_v2",
        simulated=False,
        devices=tuple(devices),
        config={"duration": "4h", "device": "all"},
        labels={"rack": "b12"},
        versions={"soak": "0.1.0", "torch": "2.13.0", "triton": "3.9.0"},
    )
    return replace(run, **changes)


def attempt_of(plan: Protocol, elapsed_ms: int, **changes: object) -> Attempt:
    whole = elapsed_ms >= plan.duration_ms
    found = Attempt(
        number=1,
        started_utc_ms=T0,
        boot_id="boot-1",
        stretches=(Stretch(0, T0),),
        elapsed_ms=elapsed_ms,
        ended_utc_ms=T0 + elapsed_ms if whole else None,
        end="completed" if whole else "running",
    )
    return replace(found, **changes)


def closed(record: RunRecord) -> RunRecord:
    """With the closing record that its rows meet, on the last attempt."""
    rows = {
        "sample": len(record.slots),
        "rotation": len(record.rotations),
        "gradient_check": len(record.gradient_checks),
        "integrity_check": len(record.integrity_checks),
        "incident": len(record.incidents),
    }
    last = replace(record.attempts[-1], closing=Closing(rows, 0))
    return replace(record, attempts=(*record.attempts[:-1], last), rows=rows)


def run_of(
    plan: Protocol,
    devices: Sequence[Device],
    elapsed_ms: int | None = None,
    change: Change = lambda slot: slot,
    run: RunInfo | None = None,
    **attempt: object,
) -> RunRecord:
    """A run of healthy cards; what is not healthy is changed afterwards."""
    elapsed_ms = plan.duration_ms if elapsed_ms is None else elapsed_ms
    rotations = [r for card in devices for r in rotations_of(plan, card, elapsed_ms)]
    return RunRecord(
        info=run or info(devices),
        attempts=(attempt_of(plan, elapsed_ms, **attempt),),
        slots=tuple(s for card in devices for s in slots_of(plan, card, elapsed_ms, change)),
        rotations=tuple(rotations),
        gradient_checks=tuple(c for card in devices for c in checks_of(plan, card, elapsed_ms)),
        integrity_checks=tuple(comparisons_of(rotations)),
    )


def incident(
    seq: int, at_ms: int, kind: str, gpu: str | None = None, detail: str = "", **data: object
) -> Incident:
    return Incident(1, seq, at_ms, T0 + at_ms, kind, gpu, detail, data)


def healthy() -> Scene:
    plan = protocol()
    return Scene(closed(run_of(plan, [mi50()])), plan, T0 + 5 * HOUR)


def failed() -> Scene:
    """ECC at 2 h 40, a dip of the link, NaN in a gradient, a worker that crashed."""
    plan = protocol()

    def change(slot: Slot) -> Slot:
        if slot.index >= 16:
            slot = replace(
                slot,
                ecc={"corrected": 3, "uncorrected": 0},
                ecc_raw={"ras/umc/corrected": 60, "ras/umc/uncorrected": 2},
            )
        if slot.index in (11, 12):
            n = slot.n_polls
            slot = replace(
                slot,
                in_spec_ms=0,
                bad_ms=slot.observed_ms,
                first_bad_ms=slot.start_ms + 5000,
                stats={
                    **slot.stats,
                    Quantity.UTILISATION_PCT: spread(40, n, 2),
                    Quantity.PCIE_WIDTH: spread(8, n, 0),
                },
            )
        return slot

    record = run_of(plan, [mi50()], change=change)
    nan = TensorError("dq", 1_000_000, 1, math.nan, math.inf, 0.2)
    checks = list(record.gradient_checks)
    checks[3] = replace(checks[3], errors=(checks[3].errors[0], nan, *checks[3].errors[2:]))
    incidents = (
        incident(1, 9_605_000, "ecc_error", GPU, "ras/umc/corrected rose from 57 to 60"),
        incident(
            2, 9_900_000, "worker_crashed", GPU, "SIGABRT at seq_len 1733", signal="SIGABRT", seq_len=1733
        ),
        incident(3, 9_912_000, "worker_restarted", GPU, "restart 1 of 3"),
    )
    record = replace(record, gradient_checks=tuple(checks), incidents=incidents)
    return Scene(closed(record), plan, T0 + 5 * HOUR)


def no_ecc(gpu: str = GPU, index: int = 0) -> Device:
    return mi50(
        gpu,
        index,
        ecc=Reading.unsupported("the driver has no RAS folder"),
        ecc_baseline={},
        notes=("the VBIOS is that of another card of the family",),
    )


def _without_ecc(slot: Slot) -> Slot:
    return replace(slot, ecc=None, ecc_raw={})


def inconclusive() -> Scene:
    """No ECC on the card, and an hour without rows."""
    plan = protocol()
    record = run_of(plan, [no_ecc()], change=lambda s: None if 6 <= s.index < 12 else _without_ecc(s))
    gap = incident(1, HOUR + 12_000, "sensor_gap", GPU, "no poll for 12 s")
    return Scene(closed(replace(record, incidents=(gap,))), plan, T0 + 5 * HOUR, 0)


def waived() -> Scene:
    plan = protocol()
    card = no_ecc()
    record = run_of(plan, [card], change=_without_ecc, run=info([card], waived=("ecc",)))
    return Scene(closed(record), plan, T0 + 5 * HOUR, -210)


def running() -> Scene:
    plan = protocol(48)
    elapsed = 2 * HOUR + 7 * MINUTE
    return Scene(run_of(plan, [mi50()], elapsed), plan, T0 + elapsed + 4000)


def killed() -> Scene:
    """Still marked running, not heard of for half an hour."""
    plan = protocol(48)
    elapsed = 2 * HOUR + 7 * MINUTE
    return Scene(run_of(plan, [mi50()], elapsed), plan, T0 + elapsed + 30 * MINUTE)


def simulated() -> Scene:
    plan = protocol()
    card = mi50(vendor="simulated")
    return Scene(closed(run_of(plan, [card], run=info([card], simulated=True))), plan, T0 + 5 * HOUR)


def eight_cards() -> Scene:
    """One lost, one without ECC."""
    plan = protocol()
    cards = [mi50(f"0000:{3 + 16 * i:02x}:00.0", i) for i in range(7)] + [no_ecc("0000:e3:00.0", 7)]
    lost, blind = cards[2].gpu, cards[7].gpu

    def change(slot: Slot) -> Slot | None:
        if slot.gpu == lost and slot.index >= 9:
            return None
        return _without_ecc(slot) if slot.gpu == blind else slot

    record = run_of(plan, cards, change=change)
    gone = incident(1, 5_300_000, "device_lost", lost, "nothing answers at this address any more")
    return Scene(closed(replace(record, incidents=(gone,))), plan, T0 + 5 * HOUR)


def two_attempts() -> Scene:
    """Interrupted at 50 min after a wrong gradient, run in full afterwards: the fail is final."""
    plan = protocol()
    second = run_of(plan, [mi50()], number=2, started_utc_ms=T0, boot_id="boot-2")
    card, short = mi50(), 50 * MINUTE
    first = attempt_of(
        plan,
        short,
        started_utc_ms=T0 - 2 * HOUR,
        stretches=(Stretch(0, T0 - 2 * HOUR),),
        ended_utc_ms=T0 - 2 * HOUR + short,
        end="interrupted",
        reason="SIGTERM",
    )
    wrong = checks_of(plan, card, short)
    wrong[0] = replace(
        wrong[0], errors=tuple(replace(e, max_abs=2.5e-3) if e.tensor == "dk" else e for e in wrong[0].errors)
    )
    rotations = rotations_of(plan, card, short)
    record = replace(
        second,
        attempts=(first, replace(second.attempts[0], stretches=(Stretch(0, T0),))),
        slots=(*slots_of(plan, card, short, lambda s: s), *(replace(s, attempt=2) for s in second.slots)),
        rotations=(*rotations, *(replace(r, attempt=2) for r in second.rotations)),
        gradient_checks=(*wrong, *(replace(c, attempt=2) for c in second.gradient_checks)),
        integrity_checks=(
            *comparisons_of(rotations),
            *(replace(c, attempt=2) for c in second.integrity_checks),
        ),
        incidents=(
            Incident(1, 1, short, T0 - 2 * HOUR + short, "interrupted", None, "SIGTERM"),
            Incident(2, 1, 0, T0, "resumed", None, "restart-clock"),
        ),
    )
    return Scene(closed(record), plan, T0 + 5 * HOUR)


def no_rows() -> Scene:
    """The planned time went by, marked completed, and nothing at all was recorded."""
    plan = protocol()
    return Scene(
        closed(RunRecord(info([mi50()]), (attempt_of(plan, plan.duration_ms),))), plan, T0 + 5 * HOUR
    )


def never_begun() -> Scene:
    return Scene(RunRecord(info([mi50()])), protocol(), T0)


def no_cards() -> Scene:
    plan = protocol()
    return Scene(RunRecord(info([]), (attempt_of(plan, plan.duration_ms),)), plan, T0 + 5 * HOUR)


EVIL = (
    '=HYPERLINK("http://evil")',
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "`code` | **bold** [link](javascript:alert(1)) ![i](http://evil/x.png) # h\n\n- item",
    "\x1b[2J\x1b]0;owned\x07 \x00 \x9b31m \u202egnp.exe\u202c \ud800 \ufffe",
    "😀👩‍🚀 \u0301 漢字" * 3,
    "]]> &amp; ' \" <!-- -->",
    "x" * 10_000,
)


def hostile() -> Scene:
    """Every foreign string is out to do harm."""
    plan = protocol(1)
    text = " ".join(EVIL)
    card = mi50(
        EVIL[1],
        model=text,
        uuid=EVIL[0],
        driver=EVIL[3],
        vbios=EVIL[2],
        notes=EVIL,
        kernel=EVIL[1],
        kernel_reason=text,
        load={EVIL[0]: [math.nan, EVIL[3]]},
        supported={Quantity.PCIE_REPLAYS: Reading.unsupported(text)},
        ecc_baseline={EVIL[5]: Reading.unreadable(text), "ras/umc/corrected": Reading.ok(1)},
    )

    def change(slot: Slot) -> Slot:
        return replace(
            slot, missing=dict.fromkeys(Quantity, text), ecc_doubt=EVIL[0], ecc_raw={EVIL[1]: 1, EVIL[4]: 2}
        )

    run = info(
        [card],
        run_id=EVIL[0] + EVIL[3],
        profile=EVIL[1],
        profile_reason=EVIL[2],
        kernel=EVIL[5],
        host_id=EVIL[6],
        config={EVIL[1]: [EVIL[3], {"deep": math.nan}], "path": Path("/data")},
        labels={EVIL[0]: EVIL[1]},
        versions={EVIL[2]: EVIL[3]},
        waived=(EVIL[1],),
    )
    record = run_of(plan, [card], change=change, run=run, reason=text)
    incidents = tuple(
        replace(incident(seq, seq * 1000, "sensor_error", EVIL[1], told), data={told: told, "x": -math.inf})
        for seq, told in enumerate(EVIL)
    )
    record = replace(
        record,
        incidents=incidents,
        rotations=tuple(replace(r, kernel=EVIL[1], golden=EVIL[0]) for r in record.rotations),
        gradient_checks=tuple(
            replace(
                c,
                dtype=EVIL[0],
                errors=(*c.errors, TensorError(EVIL[1], 0, 0, math.nan, math.nan, -math.inf)),
            )
            for c in record.gradient_checks
        ),
    )
    return Scene(closed(record), plan, T0 + 2 * HOUR)


SCENES: Mapping[str, Callable[[], Scene]] = {
    made.__name__: made
    for made in (
        healthy,
        failed,
        inconclusive,
        waived,
        running,
        killed,
        simulated,
        eight_cards,
        two_attempts,
        no_rows,
        never_begun,
        no_cards,
        hostile,
    )
}


@pytest.fixture(scope="session")
def documents() -> Mapping[str, Document]:
    """The document of every scene."""
    return {name: scene().document() for name, scene in SCENES.items()}


@pytest.fixture(params=list(SCENES))
def scene_name(request: pytest.FixtureRequest) -> str:
    """Each scene in turn."""
    return str(request.param)


@pytest.fixture
def document(scene_name: str, documents: Mapping[str, Document]) -> Document:
    return documents[scene_name]


@pytest.fixture
def evil() -> tuple[str, ...]:
    return EVIL


@pytest.fixture
def expect() -> Callable[[str, str], None]:
    """Holds a text against a file of `expected/`; SOAK_REGENERATE=1 writes the file, to be read as a diff."""

    def check(name: str, text: str) -> None:
        path = EXPECTED / name
        if os.environ.get("SOAK_REGENERATE"):
            path.write_text(text, encoding="utf-8", newline="")
        assert path.exists(), f"{path.name} is missing: SOAK_REGENERATE=1 writes it"
        assert text == path.read_bytes().decode("utf-8")

    return check


def snapshot_of(scene: Scene, message: str = "") -> Snapshot:
    """What the run of a scene looked like at its last moment."""
    record, plan, judged = scene.record, scene.plan, judge(scene.record, scene.plan)
    attempt = record.attempts[-1] if record.attempts else Attempt(1, T0, "boot-1", ())
    cards = []
    for card in judged.cards:
        gpu = card.device.gpu
        slots = [s for s in record.slots if s.gpu == gpu and s.attempt == attempt.number]
        rotations = [r for r in record.rotations if r.gpu == gpu and r.attempt == attempt.number]
        compared = [c for c in record.integrity_checks if c.gpu == gpu and c.attempt == attempt.number]
        last = slots[-1] if slots else None
        poll = Poll(gpu, 0, {q: Reading.ok(s.last) for q, s in last.stats.items()}) if last else None
        cards.append(
            CardSnapshot(
                device=card.device,
                up=not any(i.kind == "device_lost" and i.gpu == gpu for i in record.incidents),
                verdict=card.verdict,
                findings=card.findings,
                poll=poll,
                poll_utc_ms=T0 + attempt.elapsed_ms - 400 if poll else None,
                slot=last,
                n_checks={"pass": sum(c.gpu == gpu for c in record.gradient_checks), "fail": 0},
                n_steps=sum(r.n_steps for r in rotations),
                flops=sum(r.flops for r in rotations),
                n_compared=sum(c.n for c in compared),
                n_mismatches=sum(c.mismatches for c in compared),
                ecc=last.ecc if last else None,
            )
        )
    running = attempt.end == "running" and bool(record.attempts)
    return Snapshot(
        info=record.info,
        protocol=plan,
        state=attempt.end if record.attempts else "starting",
        verdict=judged.verdict,
        attempt=attempt,
        elapsed_ms=attempt.elapsed_ms,
        boot_ms=0,
        utc_ms=T0 + attempt.elapsed_ms,
        shape=plan.shape(plan.rotation_index(attempt.elapsed_ms)) if running else None,
        cards=tuple(cards),
        n_incidents={(i.gpu, i.kind): 1 for i in record.incidents},
        incidents=record.incidents[-5:],
        message=message,
    )


def eight_running() -> Scene:
    scene = eight_cards()
    plan = protocol(48)
    elapsed = 3 * HOUR + 17_500
    record = replace(scene.record, attempts=(attempt_of(plan, elapsed),))
    return Scene(record, plan, T0 + elapsed)


SNAPSHOTS: Mapping[str, Callable[[], Snapshot]] = {
    "running": lambda: snapshot_of(running()),
    "starting": lambda: snapshot_of(never_begun(), "waiting for the first step of 0000:33:00.0"),
    "failed": lambda: snapshot_of(failed()),
    "simulated": lambda: snapshot_of(simulated()),
    "eight_cards": lambda: snapshot_of(eight_running()),
    "no_cards": lambda: snapshot_of(no_cards()),
    "hostile": lambda: snapshot_of(hostile(), " ".join(EVIL)),
}


@pytest.fixture(params=list(SNAPSHOTS))
def snapshot_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def snapshot(snapshot_name: str) -> Snapshot:
    """Each snapshot in turn."""
    return SNAPSHOTS[snapshot_name]()


@pytest.fixture
def snapshots() -> dict[str, Snapshot]:
    return {name: made() for name, made in SNAPSHOTS.items()}


@pytest.fixture
def at() -> Callable[[Snapshot, int], Snapshot]:
    """A snapshot at another elapsed time."""

    def moved(snapshot: Snapshot, elapsed_ms: int) -> Snapshot:
        return replace(snapshot, elapsed_ms=elapsed_ms, utc_ms=T0 + elapsed_ms)

    return moved


@pytest.fixture
def assembled() -> Callable[[str, Callable[[RunInfo], RunInfo]], Document]:
    """The document of a scene with another RunInfo."""

    def made(name: str, change: Callable[[RunInfo], RunInfo]) -> Document:
        scene = SCENES[name]()
        return replace(scene, record=replace(scene.record, info=change(scene.record.info))).document()

    return made


@pytest.fixture
def with_text() -> Callable[[str], Document]:
    """A small run in which every foreign string is this one."""
    plan = protocol(0.25)

    def made(text: str) -> Document:
        card = mi50(
            model=text,
            uuid=text,
            driver=text,
            notes=(text,),
            supported={Quantity.PCIE_REPLAYS: Reading.unsupported(text)},
            ecc_baseline={text: Reading.unreadable(text)},
        )
        run = info([card], run_id=text, profile=text, profile_reason=text, kernel=text, labels={text: text})
        record = run_of(plan, [card], change=lambda s: replace(s, ecc_doubt=text), run=run, reason=text)
        told = incident(1, 1000, "sensor_error", GPU, text)
        record = replace(
            record,
            rotations=tuple(replace(r, golden=text) for r in record.rotations),
            slots=tuple(replace(s, missing={Quantity.PCIE_SPEED_GTS: text}) for s in record.slots),
            incidents=(replace(told, data={text: text}), replace(told, seq=2, gpu=text)),
        )
        return Scene(closed(record), plan, T0 + HOUR).document()

    return made


@pytest.fixture
def judged() -> Mapping[str, tuple[RunRecord, Judgement]]:
    """The record and the judgement of every scene."""
    scenes = {name: made() for name, made in SCENES.items()}
    return {name: (scene.record, judge(scene.record, scene.plan)) for name, scene in scenes.items()}


@pytest.fixture
def aged() -> Callable[[tuple[RunRecord, Judgement], int], tuple[RunRecord, Judgement]]:
    """A run made some hours earlier."""

    def older(found: tuple[RunRecord, Judgement], hours: int) -> tuple[RunRecord, Judgement]:
        record, judgement = found
        run = replace(record.info, run_id=f"aged-{hours}", created_utc_ms=T0 - hours * HOUR)
        return replace(record, info=run), judgement

    return older


@pytest.fixture
def unproved() -> Document:
    """A healthy run, but for one gradient check whose outputs did not carry the golden digest."""
    scene = healthy()
    first, *others = scene.record.gradient_checks
    checks = (replace(first, golden_proved=False), *others)
    return replace(scene, record=replace(scene.record, gradient_checks=checks)).document()
