"""Telemetry of a real NVIDIA card against nvidia-smi and its performance monitors; doctor and capture on it.

    PYTHONPATH=.:kernels:migrations python tests/on_gpu/telemetry_h200.py --out OUT

Some six minutes: `soak doctor`, then a soak of the first card; under it a sampler of its own for 300 s beside
`nvidia-smi -lms 1000` and GPM over windows of 10 s, and a capture. Prints a table, writes `telemetry.json`
and the capture below OUT; exit code 0 if every row holds.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml

from soak.clock import SystemClock
from soak.core.records import Poll, Quantity
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


@dataclass
class Row:
    name: str
    wanted: str
    measured: str
    holds: bool


class SmiLog:
    """nvidia-smi's lines with the time of their arrival."""

    def __init__(self) -> None:
        columns = ",".join((*SMI, *SMI_ECC))
        self._child = subprocess.Popen(
            [
                "nvidia-smi",
                "-i",
                "0",
                f"--query-gpu={columns}",
                "--format=csv,noheader,nounits",
                "-lms",
                "1000",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[tuple[int, list[str]]] = []
        threading.Thread(target=self._gather, daemon=True).start()

    def _gather(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append((CLOCK.boot_ms(), [field.strip() for field in line.split(",")]))

    def stop(self) -> None:
        self._child.kill()

    def near(self, boot_ms: int, column: int) -> float | None:
        at_ms, fields = min(self.lines, key=lambda line: abs(line[0] - boot_ms))
        try:
            return float(fields[column]) if abs(at_ms - boot_ms) <= NEAR_MS else None
        except ValueError:
            return None


class GpmLog:
    """Windows of the performance monitors, and the counters of slowed time beside them."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.windows: list[tuple[int, int, dict[str, float]]] = []
        self.counters: list[tuple[int, dict[int, int | None], int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(15)

    def _run(self) -> None:
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
def soak_at_work(out: Path, seconds: int) -> Iterator[subprocess.Popen[bytes]]:
    """A soak of the first card, from its t0 on until after the measurement."""
    command = [
        sys.executable, "-m", "soak", "run", "--profile", "generic", "--duration", f"{seconds}s",
        "--rotate-every", "20s", "--check-every", "60s", "--sample-every", "30s", "--warmup", "30s",
        "--data-dir", str(out / "data"), "--listen", "127.0.0.1:0", "--device", "cuda:0",
    ]  # fmt: skip
    log = (out / "run.log").open("w")
    child = subprocess.Popen(command, stdout=(out / "run.txt").open("w"), stderr=log)
    try:
        end = time.monotonic() + 240
        while "rotation 0" not in (out / "run.log").read_text():
            assert child.poll() is None, (out / "run.log").read_text()[-2000:]
            assert time.monotonic() < end, "no first step in 240 s"
            time.sleep(0.5)
        yield child
        child.wait(120)
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait(30)


def doctored(out: Path) -> list[Row]:
    """`soak doctor` on the card at rest."""
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "soak", "doctor", "--profile", "generic", "--device", "cuda:0", "--json"]
    done = subprocess.run(
        [*command, "--data-dir", str(out / "data")], capture_output=True, text=True, check=False
    )
    took_s = time.monotonic() - begun_s
    (out / "doctor.json").write_text(done.stdout + done.stderr)
    if not done.stdout:
        return [Row("doctor", "a checklist", done.stderr.strip()[-300:], False)]
    lines = json.loads(done.stdout)["lines"]
    rows = [
        Row(
            "doctor",
            "in seconds, no fail",
            f"exit {done.returncode}, {took_s:.0f} s",
            done.returncode in (0, 3),
        )
    ]
    for line in lines:
        if line["level"] != "ok" or line["check"] in ("pairing", "triton", "pcie link", "runtime"):
            rows.append(
                Row(
                    f"doctor: {line['check']}",
                    "not fail",
                    f"{line['level']}: {line['says']}",
                    line["level"] != "fail",
                )
            )
    return rows


def captured(out: Path) -> list[Row]:
    """A capture under load, read again."""
    command = [sys.executable, "-m", "soak", "doctor", "--capture", str(out / "capture")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    folders = sorted(path.name for path in (out / "capture").glob("nvidia__*"))
    said = " | ".join((done.stdout + done.stderr).strip().splitlines())[:400]
    return [Row("capture", "one of this card", said, done.returncode == 0 and len(folders) == 1)]


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
            inside = [
                v for p in polls if begun_ms < p.boot_ms <= ended_ms if (v := value(p, quantity)) is not None
            ]
            if len(inside) >= WINDOW_S - 1:
                means.append((statistics.fmean(inside), told[name]))
                differences.append(abs(means[-1][0] - told[name]))
        if not means:
            yield Row(f"{quantity} / GPM {name}", "within 2 points", "nothing to compare", False)
            continue
        ours, theirs = (statistics.fmean(side) for side in zip(*means, strict=True))
        yield Row(
            f"{quantity} / GPM {name}",
            "each window of 10 s within 2 points",
            f"{ours:.2f} / {theirs:.2f}, largest difference {max(differences):.2f}, windows {len(means)}",
            max(differences) <= 2.0,
        )


def of_itself(polls: Sequence[Poll], cpu_s: float, wall_s: float) -> Iterator[Row]:
    """Cost, cadence, and energy against power."""
    costs = sorted(poll.cost_ms for poll in polls)
    per_s = 1000 * cpu_s / wall_s
    yield Row(
        "cost of telemetry", "< 5 ms of CPU a GPU and second",
        f"child {per_s:.2f} ms a second; poll median {statistics.median(costs):.2f}, "
        f"p99 {costs[int(0.99 * len(costs))]:.2f} ms",
        per_s < 5,
    )  # fmt: skip
    stamps = [poll.boot_ms for poll in polls]
    jitter = sorted(abs(b - a - 1000) for a, b in pairwise(stamps))
    p99 = jitter[int(0.99 * len(jitter))]
    yield Row(
        "jitter of 1 Hz",
        "p99 < 50 ms",
        f"p99 {p99} ms, largest {jitter[-1]} ms, polls {len(polls)}",
        p99 < 50,
    )
    energy = [(p.boot_ms, v) for p in polls if (v := value(p, Q.ENERGY_J)) is not None]
    power = [v for p in polls if (v := value(p, Q.POWER_W)) is not None]
    if energy:
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
    (begun_ms, first, _), (ended_ms, last, _) = gpm.counters[0], gpm.counters[-1]
    rates = {
        field: None
        if a is None or last[field] is None
        else round((last[field] - a) / ((ended_ms - begun_ms) / 1000))
        for field, a in first.items()
    }
    reasons = sorted({f"{bits:#x}" for _, _, bits in gpm.counters})
    yield Row("slowed time a second, by field", "for reading", f"{rates}; reasons {reasons}", True)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(out: Path, seconds: int) -> list[Row]:
    with soak_at_work(out, seconds + 40):
        smi, gpm = SmiLog(), GpmLog()
        sampler = Sampler(("nvidia",), clock=CLOCK)
        sampler.start()
        gpu = sampler.devices()[0].gpu
        sampler.watch([gpu], 1000, 10_000)
        time.sleep(5)
        sampler.take()
        pid = sampler.pid
        assert pid is not None
        begun_s, begun_cpu_s = time.monotonic(), cpu_s(pid)
        polls: list[Poll] = []
        while time.monotonic() < begun_s + seconds:
            time.sleep(1)
            polls += [item for item in sampler.take() if isinstance(item, Poll)]
        used_s, wall_s = cpu_s(pid) - begun_cpu_s, time.monotonic() - begun_s
        gpm.stop()
        smi.stop()
        sampler.stop(1000)
        rows = captured(out)
    parts: list[Callable[[], Iterator[Row]]] = [
        lambda: against_smi(polls, smi),
        lambda: against_gpm(polls, gpm),
        lambda: of_itself(polls, used_s, wall_s),
        lambda: of_counters(gpm),
    ]
    return [*(row for part in parts for row in _safely(part)), *rows]


def _safely(part: Callable[[], Iterator[Row]]) -> list[Row]:
    """A part that fails costs its own rows: a minute on a card is dear."""
    try:
        return list(part())
    except Exception as error:  # noqa: BLE001
        return [Row("a part of this script", "works", f"{type(error).__name__}: {error}", False)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/telemetry")))
    parser.add_argument("--seconds", type=int, default=300)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    rows = [*doctored(out), *measured(out, arguments.seconds)]
    document: dict[str, Any] = {"rows": [asdict(row) for row in rows]}
    (out / "telemetry.json").write_text(json.dumps(document, indent=1))
    for row in rows:
        print(f"{'ok  ' if row.holds else 'FAIL'} {row.name}: {row.measured}  [{row.wanted}]")
    return int(not all(row.holds for row in rows))


if __name__ == "__main__":
    sys.exit(main())
