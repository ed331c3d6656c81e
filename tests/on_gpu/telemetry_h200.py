"""Telemetry of a real NVIDIA card against nvidia-smi and its performance monitors; doctor and capture on it.

    PYTHONPATH=.:kernels:migrations python tests/on_gpu/telemetry_h200.py --out OUT

Seven to nine minutes: `soak doctor`, then a soak of the first card; once its load is steady, a sampler of its
own for 300 s beside `nvidia-smi -lms 1000` and GPM over windows of 10 s, then a capture. The measurement is
cut short rather than to go beyond --within. What fails costs its own rows. Prints a table, `ok` or `FAIL`
first and the figures last; writes `telemetry.json` and the capture below OUT; exit code 0 if every row holds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml

from soak.clock import SystemClock
from soak.core.records import Poll, Quantity
from soak.doctor.replay import EXPECTED, made_of
from soak.telemetry.watch import Sampler

Q = Quantity
MIB = 1 << 20
CLOCK = SystemClock()
SMI = {  # what nvidia-smi is asked, and the quantity and factor that it is held against
    "utilization.gpu": (Q.UTILISATION_PCT, 1.0),
    "temperature.gpu": (Q.TEMPERATURE_CORE_C, 1.0),
    "temperature.memory": (Q.TEMPERATURE_MEMORY_C, 1.0),
    "power.draw.average": (Q.POWER_W, 1.0),
    "memory.total": (Q.MEMORY_TOTAL_BYTES, MIB),
    "memory.free": (Q.MEMORY_FREE_BYTES, MIB),
}
SMI_ECC = ("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total")
GPM = {1: "graphics", 2: "SM", 5: "tensor", 10: "DRAM"}
NEAR_MS = 600  # a reading of nvidia-smi this far from ours is of the same second
WINDOW_S = 10
SETTLE_S, STEADY_POLLS, STEADY_PCT = 60, 10, 95.0  # the window begins after so many polls in a row at work
BEFORE_S, AFTER_S = 15, 60  # of a run beside the measurement: sensors opened; the capture, the last check


@dataclass
class Row:
    name: str
    wanted: str
    measured: str
    holds: bool


class SmiLog:
    """nvidia-smi's lines about one card with the time of their arrival."""

    def __init__(self, index: int) -> None:
        query = f"--query-gpu={','.join((*SMI, *SMI_ECC))}"
        command = ["nvidia-smi", "-i", str(index), query, "--format=csv,noheader,nounits", "-lms", "1000"]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: list[tuple[int, list[str]]] = []
        threading.Thread(target=self._gather, daemon=True).start()

    def _gather(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append((CLOCK.boot_ms(), [field.strip() for field in line.split(",")]))

    def stop(self) -> None:
        self._child.kill()
        self._child.wait()

    def near(self, boot_ms: int, column: int) -> float | None:
        at_ms, fields = min(self.lines, key=lambda line: abs(line[0] - boot_ms))
        try:
            return float(fields[column]) if abs(at_ms - boot_ms) <= NEAR_MS else None
        except ValueError:
            return None


class GpmLog:
    """Windows of the performance monitors, and the counters of slowed time beside them. `fault`: what ended
    it before its time."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._handle: Any = None
        self.fault = ""
        self.windows: list[tuple[int, int, dict[str, float]]] = []
        self.counters: list[tuple[int, dict[int, int | None], int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(15)

    def _run(self) -> None:
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(self._gpu)
            self._gather()
        except (AttributeError, pynvml.NVMLError) as error:
            self.fault = f"{type(error).__name__}: {error}"

    def _gather(self) -> None:
        before, after = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(self._handle, before)
        begun_ms = CLOCK.boot_ms()
        while not self._stop.wait(WINDOW_S):
            pynvml.nvmlGpmSampleGet(self._handle, after)
            ended_ms = CLOCK.boot_ms()
            request = pynvml.c_nvmlGpmMetricsGet_t()
            request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
            request.sample1, request.sample2 = before, after
            for index, metric in enumerate(GPM):
                request.metrics[index].metricId = metric
            pynvml.nvmlGpmMetricsGet(request)
            told = {name: request.metrics[index].value for index, name in enumerate(GPM.values())}
            self.windows.append((begun_ms, ended_ms, told))
            self.counters.append((ended_ms, self._slowed(), self._reasons()))
            before, after, begun_ms = after, before, ended_ms

    def _slowed(self) -> dict[int, int | None]:
        told = pynvml.nvmlDeviceGetFieldValues(self._handle, [74, 75, 269, 270, 271, 251, 252, 253])
        return {v.fieldId: v.value.ullVal if v.nvmlReturn == 0 else None for v in told}

    def _reasons(self) -> int:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))


@contextmanager
def soak_at_work(out: Path, gpu: str, seconds: int) -> Iterator[None]:
    """A soak of one card, from its t0 on until after the measurement; ended where it goes on."""
    command = [
        sys.executable, "-m", "soak", "run", "--profile", "generic", "--duration", f"{seconds}s",
        "--rotate-every", "20s", "--check-every", "60s", "--sample-every", "30s", "--warmup", "30s",
        "--data-dir", str(out / "data"), "--listen", "127.0.0.1:0", "--device", gpu,
        "--accept-inconclusive",
    ]  # fmt: skip
    with (out / "run.txt").open("w") as said, (out / "run.log").open("w") as log:
        child = subprocess.Popen(command, stdout=said, stderr=log)
        try:
            end = time.monotonic() + 180
            while "rotation 0" not in (out / "run.log").read_text():
                assert child.poll() is None, (out / "run.log").read_text()[-600:]
                assert time.monotonic() < end, (
                    f"no first step in 180 s: {(out / 'run.log').read_text()[-600:]}"
                )
                time.sleep(0.5)
            yield
        finally:
            if child.poll() is None:
                child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def settled(sampler: Sampler, limit_s: float) -> Row:
    """Waits until the card has been at work for a while: what comes before is not the load's."""
    begun_s, n_steady, last = time.monotonic(), 0, None
    while n_steady < STEADY_POLLS and time.monotonic() < begun_s + limit_s:
        time.sleep(0.5)
        for item in sampler.take():
            if isinstance(item, Poll):
                last = value(item, Q.UTILISATION_PCT)
                n_steady = n_steady + 1 if last is not None and last >= STEADY_PCT else 0
    says = f"after {time.monotonic() - begun_s:.0f} s: {n_steady} polls in a row at {last} %"
    return Row("load steady", f"{STEADY_POLLS} polls at {STEADY_PCT:.0f} %", says, n_steady >= STEADY_POLLS)


def doctored(out: Path, gpu: str) -> Iterator[Row]:
    """`soak doctor` on the card at rest."""
    begun_s = time.monotonic()
    command = [
        sys.executable, "-m", "soak", "doctor", "--profile", "generic", "--device", gpu, "--json",
        "--listen", "127.0.0.1:0", "--data-dir", str(out / "data"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    took_s = time.monotonic() - begun_s
    (out / "doctor.json").write_text(done.stdout)
    if not done.stdout:
        yield Row("doctor", "a checklist", done.stderr.strip()[-300:], False)
        return
    lines = json.loads(done.stdout)["lines"]
    says = f"exit {done.returncode}, {len(lines)} lines, {took_s:.0f} s"
    yield Row("doctor", "in seconds, no fail", says, done.returncode in (0, 3))
    for line in lines:
        if line["level"] != "ok" or line["check"] in ("pairing", "triton", "pcie link", "runtime"):
            says, holds = f"{line['level']}: {line['says']}", line["level"] != "fail"
            yield Row(f"doctor: {line['check']}", "not fail", says, holds)


def captured(out: Path) -> Iterator[Row]:
    """A capture under load, read again."""
    folder = out / "capture"
    command = [sys.executable, "-m", "soak", "doctor", "--capture", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    found = sorted(folder.glob("nvidia__*"))
    said = " | ".join((done.stdout + done.stderr).strip().splitlines())[:300]
    yield Row("capture", "one of this card", said, done.returncode == 0 and len(found) == 1)
    for path in found:
        same = made_of(path) == json.loads((path / EXPECTED).read_text())
        yield Row(f"capture: {path.name}", "read again as written", "equal" if same else "differs", same)


def value(poll: Poll, quantity: Quantity) -> float | None:
    reading = poll.readings.get(quantity)
    return None if reading is None else reading.value


def against_smi(polls: Sequence[Poll], smi: SmiLog) -> Iterator[Row]:
    for column, (name, (quantity, factor)) in enumerate(SMI.items()):
        pairs = []
        for poll in polls:
            ours, theirs = value(poll, quantity), smi.near(poll.boot_ms, column)
            if ours is not None and theirs is not None:
                pairs.append((ours / factor, theirs))
        if not pairs:
            yield Row(f"{quantity} / {name}", "equal", "nothing to compare", False)
            continue
        ours, theirs = (statistics.fmean(side) for side in zip(*pairs, strict=True))
        differences = sorted(abs(a - b) for a, b in pairs)
        median = statistics.median(differences)
        yield Row(
            f"{quantity} / {name}",
            "median within 1 or 2 %",
            f"{ours:.2f} / {theirs:.2f}, median difference {median:.3g}, "
            f"p95 {differences[int(0.95 * len(differences))]:.3g}, n {len(pairs)}",
            median <= max(1.0, 0.02 * theirs),
        )
    ecc = [poll.ecc for poll in polls if poll.ecc is not None][-1]
    ours_ecc = [ecc[f"volatile/all/{kind}"].value for kind in ("corrected", "uncorrected")]
    theirs_ecc = smi.lines[-1][1][-2:]
    yield Row(
        "ECC volatile", "equal", f"{ours_ecc} / {theirs_ecc}", ours_ecc == [float(n) for n in theirs_ecc]
    )
    yield Row("ECC keys", "told", ", ".join(sorted(ecc)), True)


def against_gpm(polls: Sequence[Poll], gpm: GpmLog) -> Iterator[Row]:
    names = (("graphics", Q.UTILISATION_PCT), ("SM", Q.SM_ACTIVE_PCT), ("tensor", Q.TENSOR_ACTIVE_PCT),
             ("DRAM", Q.DRAM_ACTIVE_PCT))  # fmt: skip
    for name, quantity in names:
        differences, means = [], []
        for begun_ms, ended_ms, told in gpm.windows:
            ours_there = mean_between(polls, quantity, begun_ms, ended_ms)
            if ours_there is not None:
                means.append((ours_there, told[name]))
                differences.append(abs(ours_there - told[name]))
        if not means:
            says = gpm.fault or f"nothing to compare in {len(gpm.windows)} windows"
            yield Row(f"{quantity} / GPM {name}", "within 2 points", says, False)
            continue
        ours, theirs = (statistics.fmean(side) for side in zip(*means, strict=True))
        yield Row(
            f"{quantity} / GPM {name}",
            "each window of 10 s within 2 points",
            f"{ours:.2f} / {theirs:.2f}, largest difference {max(differences):.2f}, windows {len(means)}",
            max(differences) <= 2.0,
        )


def mean_between(polls: Sequence[Poll], quantity: Quantity, begun_ms: int, ended_ms: int) -> float | None:
    """The mean over a time, each poll standing for the time since the one before; None where a tenth of it or
    more is not covered."""
    covered_ms = total = 0.0
    for before, poll in pairwise(polls):
        told = value(poll, quantity)
        overlap_ms = min(poll.boot_ms, ended_ms) - max(before.boot_ms, begun_ms)
        if told is not None and overlap_ms > 0:
            covered_ms += overlap_ms
            total += told * overlap_ms
    return total / covered_ms if covered_ms > 0.9 * (ended_ms - begun_ms) else None


def of_itself(polls: Sequence[Poll], cpu_s: float | None, wall_s: float) -> Iterator[Row]:
    """Cost, cadence, and energy against power. `cpu_s`: of the sampler's child, None if it was replaced."""
    costs = sorted(poll.cost_ms for poll in polls)
    poll_says = f"poll median {statistics.median(costs):.2f}, p99 {costs[int(0.99 * len(costs))]:.2f} ms"
    if cpu_s is None:
        yield Row("cost of telemetry", "one child throughout", f"it was replaced; {poll_says}", False)
    else:
        per_s = 1000 * cpu_s / wall_s
        says = f"child {per_s:.2f} ms a second; {poll_says}"
        yield Row("cost of telemetry", "< 5 ms of CPU a GPU and second", says, per_s < 5)
    stamps = [poll.boot_ms for poll in polls]
    jitter = sorted(abs(b - a - 1000) for a, b in pairwise(stamps))
    p99 = jitter[int(0.99 * len(jitter))]
    yield Row(
        "jitter of 1 Hz",
        "p99 < 50 ms",
        f"p99 {p99} ms, largest {jitter[-1]} ms, {len(polls)} polls in {wall_s:.0f} s",
        p99 < 50,
    )
    told = [(p.boot_ms, v) for p in polls if (v := value(p, Q.ENERGY_J)) is not None]
    energy = [after for before, after in pairwise(told) if after[1] != before[1]]  # read anew
    power = [v for p in polls if (v := value(p, Q.POWER_W)) is not None]
    if len(energy) > 1 and power:
        mean_w = (energy[-1][1] - energy[0][1]) / ((energy[-1][0] - energy[0][0]) / 1000)
        told_w = statistics.fmean(power)
        says = f"{mean_w:.1f} W by the energy counter, {told_w:.1f} W by the sensor"
        yield Row("energy / power", "within 2 %", says, abs(mean_w - told_w) < 0.02 * told_w)
    for quantity in (Q.THERMAL_THROTTLE, Q.POWER_THROTTLE):
        flags = [v for p in polls if (v := value(p, quantity)) is not None]
        yield Row(
            str(quantity), "told", f"on in {sum(flags):.0f} of {len(flags)} polls", len(flags) == len(polls)
        )


def of_counters(gpm: GpmLog) -> Iterator[Row]:
    """Which counters of slowed time rise, and how fast: their unit and what they mean, to be read."""
    if len(gpm.counters) < 2:
        yield Row("slowed time a second, by field", "two readings", gpm.fault or "fewer", False)
        return
    (begun_ms, first, _), (ended_ms, last, _) = gpm.counters[0], gpm.counters[-1]
    seconds = (ended_ms - begun_ms) / 1000
    rates = {
        field: round((after - before) / seconds)
        for field, before in first.items()
        if before is not None and (after := last[field]) is not None
    }
    reasons = sorted({f"{bits:#x}" for _, _, bits in gpm.counters})
    yield Row("slowed time a second, by field", "for reading", f"{rates}; reasons {reasons}", True)


def cpu_s(pid: int | None) -> float | None:
    """Processor seconds of a process so far; None where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(out: Path, gpu: str, index: int, end_s: float, seconds: int) -> Iterator[Row]:
    """The rows of a soak of the card, measured for `seconds`, or until AFTER_S before `end_s`."""
    with soak_at_work(out, gpu, BEFORE_S + SETTLE_S + seconds + AFTER_S):
        sampler = Sampler(("nvidia",), clock=CLOCK)
        sampler.start()
        try:
            sampler.devices()
            sampler.watch([gpu], 1000, 10_000)
            yield settled(sampler, SETTLE_S)
            window_s = min(seconds, end_s - AFTER_S - time.monotonic())
            smi, gpm = SmiLog(index), GpmLog(gpu)
            polls, used_s, wall_s = gathered(sampler, window_s)
            gpm.stop()
            smi.stop()
        finally:
            sampler.stop(1000)
        yield Row("window", f"{seconds} s", f"{wall_s:.0f} s, {len(polls)} polls", wall_s > 0.9 * seconds)
        yield from safely("nvidia-smi", lambda: against_smi(polls, smi))
        yield from safely("GPM", lambda: against_gpm(polls, gpm))
        yield from safely("cost and cadence", lambda: of_itself(polls, used_s, wall_s))
        yield from safely("counters", lambda: of_counters(gpm))
        yield from safely("capture", lambda: captured(out))


def gathered(sampler: Sampler, seconds: float) -> tuple[list[Poll], float | None, float]:
    """Polls, processor seconds of the sampler's child (None where it was replaced), and the time it took."""
    sampler.take()
    pid = sampler.pid
    begun_s, begun_cpu_s = time.monotonic(), cpu_s(pid)
    polls: list[Poll] = []
    while time.monotonic() < begun_s + seconds:
        time.sleep(1)
        polls += [item for item in sampler.take() if isinstance(item, Poll)]
    wall_s, ended_cpu_s = time.monotonic() - begun_s, cpu_s(pid)
    if sampler.pid != pid or begun_cpu_s is None or ended_cpu_s is None:
        return polls, None, wall_s
    return polls, ended_cpu_s - begun_cpu_s, wall_s


def safely(name: str, part: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """A part that fails costs its own rows: a minute on a card is dear."""
    try:
        yield from part()
    except Exception as error:  # noqa: BLE001  whatever it is, it is told and the rest goes on
        at = traceback.extract_tb(error.__traceback__)[-1]
        yield Row(name, "works", f"{type(error).__name__}: {error} (line {at.lineno} of {at.name})", False)


def first_card() -> tuple[str, int]:
    """Address and NVML's number of the card that is measured."""
    sampler = Sampler(("nvidia",), clock=CLOCK)
    sampler.start()
    try:
        devices = sampler.devices()
    finally:
        sampler.stop(1000)
    assert devices, sampler.absences
    return devices[0].gpu, devices[0].index


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/telemetry")))
    parser.add_argument("--seconds", type=int, default=300, help="of the measurement")
    parser.add_argument("--within", type=int, default=570, help="seconds for all of it")
    arguments = parser.parse_args()
    end_s = time.monotonic() + arguments.within
    out: Path = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    search = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(folder).absolute()) for folder in search if folder)

    def all_of_it() -> Iterator[Row]:
        gpu, index = first_card()
        yield Row("card", "found", gpu, True)
        yield from safely("doctor", lambda: doctored(out, gpu))
        yield from safely("soak", lambda: measured(out, gpu, index, end_s, arguments.seconds))

    rows: list[Row] = []
    for row in safely("telemetry", all_of_it):
        rows.append(row)
        document = {"rows": [asdict(known) for known in rows]}
        (out / "telemetry.json").write_text(json.dumps(document, indent=1))  # so far, should it be ended
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{'ok  ' if row.holds else 'FAIL'} {row.name:<{width}}  [{row.wanted}]  {row.measured}")
    n_failed = sum(not row.holds for row in rows)
    print(f"{len(rows) - n_failed} ok, {n_failed} FAIL")
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
