"""The load on a real GPU, watched through NVML: one command, one JSON file, exit code 0 if all is as it
should be.

    PYTHONPATH=.:kernels python tests/load/on_gpu.py --seconds 120 --json load.json

Runs the pool with the worker of the first NVIDIA card: rotations, gradient checks, then a second worker for
the same golden digest, one with an injected flip, and one that is killed by SIGSEGV. Needs torch, triton,
msgspec, pynvml.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pynvml

from soak.core.criteria import broken_limits
from soak.core.ports import Checked, Happening, Progress, Ready
from soak.core.protocol import Limits, Protocol
from soak.core.records import Device
from soak.load.pool import Pool

BAD_POLLS_MAX = 0.005  # of the polls below 95 %
MEAN_MIN = 97.0


class Clock:
    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def utc_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Card:
    """What NVML says of the first card, once a second."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        bus = pynvml.nvmlDeviceGetPciInfo(self.handle)
        self.gpu = f"{bus.domain:04x}:{bus.bus:02x}:{bus.device:02x}.0"
        self.device = Device(self.gpu, "nvidia", uuid=pynvml.nvmlDeviceGetUUID(self.handle))

    def poll(self) -> tuple[int, float]:
        """Utilisation in per cent, power in watts."""
        used = pynvml.nvmlDeviceGetUtilizationRates(self.handle).gpu
        return used, pynvml.nvmlDeviceGetPowerUsage(self.handle) / 1000.0


class Life:
    """A pool from start to stop, and what came of it."""

    def __init__(self, card: Card, protocol: Protocol, inject: str | None = None) -> None:
        self.card, self.protocol = card, protocol
        self.pool = Pool([card.device], protocol, Clock(), inject_bit_flip=inject)
        self.began_s = time.monotonic()
        self.ready: Ready | None = None
        self.last: dict[int, Progress] = {}
        self.beats: list[Progress] = []
        self.checks: list[Any] = []
        self.happened: list[Happening] = []
        self.polls: list[
            tuple[float, int, int, float]
        ] = []  # seconds after ready, rotation, utilisation, watts

    def take(self) -> None:
        for event in self.pool.take():
            match event:
                case Ready():
                    self.ready = event
                    print(f"ready after {time.monotonic() - self.began_s:.1f} s: {event}", flush=True)
                case Progress():
                    self.last[event.rotation] = event
                    self.beats.append(event)
                case Checked():
                    self.checks.append(event.check)
                    print(event.check, flush=True)
                case Happening():
                    self.happened.append(event)
                    print(event, flush=True)

    def until(self, what: Any, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not what():
            if not self.pool.alive:
                return bool(what())
            time.sleep(0.05)
            self.take()
        return bool(what())

    def soak(self, seconds: float, rotate_s: float, check_s: float) -> None:
        began = time.monotonic()
        n_rotations = n_checks = n_polls = 0
        while (now_s := time.monotonic() - began) < seconds:
            if now_s >= n_checks * check_s:
                self.pool.check(n_checks)
                n_checks += 1
            if now_s >= (n_rotations + 1) * rotate_s:
                n_rotations += 1
                self.pool.rotate(self.protocol.shape(n_rotations))
            if now_s >= n_polls:
                n_polls += 1
                self.polls.append((round(now_s, 2), n_rotations, *self.card.poll()))
            self.take()
            time.sleep(0.02)
        self.until(lambda: len(self.checks) >= n_checks, 60)
        print(f"{n_checks} checks ordered, {len(self.checks)} made", flush=True)


def shapes(life: Life) -> list[dict[str, Any]]:
    """Each rotation: its steps, speed and power."""
    watts = defaultdict(list)
    used = defaultdict(list)
    for at_s, rotation, utilisation, watt in life.polls[1:]:
        del at_s
        watts[rotation].append(watt)
        used[rotation].append(utilisation)
    rates = defaultdict(list)
    for beat in life.beats:
        if beat.rate_ratio is not None:
            rates[beat.rotation].append(beat.rate_ratio)
    rows = []
    for rotation, last in sorted(life.last.items()):
        shape = life.protocol.shape(rotation)
        ratios = rates[rotation] or [float("nan")]
        rows.append(
            {
                "rotation": rotation, "seq_len": shape.seq_len, "causal": shape.causal,
                "n_steps": last.n_steps, "n_compared": last.n_compared, "n_due": last.n_due,
                "expected_step_ms": round(last.expected_step_ms, 3),
                "rate_ratio_min": round(min(ratios), 3),
                "rate_ratio_median": round(statistics.median(ratios), 3),
                "watts_median": statistics.median(watts[rotation]) if watts[rotation] else None,
                "utilisation_min": min(used[rotation], default=None), "golden": last.golden,
            }
        )  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="the load on a real GPU")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rotate-every", type=float, default=10)
    parser.add_argument("--check-every", type=float, default=30)
    parser.add_argument("--seq-len", default="512:4096")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--compare-every", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shortest, longest = (int(part) for part in options.seq_len.split(":"))
    protocol = Protocol(
        duration_ms=int(options.seconds * 1000),
        rotate_ms=int(options.rotate_every * 1000),
        check_ms=int(options.check_every * 1000),
        sample_ms=30_000,
        poll_ms=1_000,
        warmup_ms=0,
        seq_len_min=shortest,
        seq_len_max=longest,
        seed=7,
        limits=Limits(frozenset()),
        tokens=options.tokens,
        compare_every=options.compare_every,
    )
    card, wrong, found = Card(), [], {}
    main_life = Life(card, protocol)
    main_life.pool.start()
    if not main_life.until(lambda: main_life.ready is not None, 300):
        print("never ready")
        return 1
    main_life.soak(options.seconds, options.rotate_every, options.check_every)
    main_life.pool.stop(3_000)
    main_life.take()
    used = [utilisation for at_s, _, utilisation, _ in main_life.polls if at_s > 2]
    found["ready"] = str(main_life.ready)
    found["facts"] = dict(main_life.ready.facts)
    found["shapes"] = shapes(main_life)
    found["utilisation"] = {"mean": statistics.mean(used), "min": min(used), "n": len(used)}
    found["polls"] = main_life.polls
    found["checks"] = [str(check) for check in main_life.checks]
    gaps = [b.boot_ms - a.boot_ms for a, b in zip(main_life.beats, main_life.beats[1:], strict=False)]
    found["longest_gap_between_beats_ms"] = max(gaps, default=None)
    found["step_late_ms"] = max(b.boot_ms - (b.last_step_boot_ms or 0) for b in main_life.beats)
    if main_life.happened:
        wrong.append(f"happened: {main_life.happened}")
    if sum(u < 95 for u in used) > BAD_POLLS_MAX * len(used) or statistics.mean(used) < MEAN_MIN:
        wrong.append(f"utilisation {found['utilisation']}, {sum(u < 95 for u in used)} polls below 95")
    for check in main_life.checks:
        if broken := broken_limits(check, protocol.limits):
            wrong.append(f"check {check.index}: {broken}")
        if check.golden_proved is not True:
            wrong.append(f"check {check.index} did not carry the golden digest")
    if sum(p.mismatches for p in main_life.last.values()):
        wrong.append("mismatches")

    again = Life(card, protocol, inject="0:33")
    again.pool.start()
    again.until(lambda: any(h.kind == "mismatch" for h in again.happened), 120)
    again.until(lambda: 0 in again.last and again.last[0].golden != "", 10)
    golden = [life.last[0].golden if 0 in life.last else None for life in (main_life, again)]
    found["golden_twice"] = golden
    if golden[0] != golden[1]:
        wrong.append(f"two workers gave other bits: {golden}")
    found["injected"] = [str(happening) for happening in again.happened]
    if [h.data.get("replay") for h in again.happened] != ["transient"]:
        wrong.append(f"the injected flip: {again.happened}")
    os.kill(again.pool.pids[card.gpu], signal.SIGSEGV)
    again.ready = None
    again.until(lambda: again.ready is not None, 120)
    found["after_segv"] = [happening.kind for happening in again.happened]
    if again.ready is None or "worker_crashed" not in found["after_segv"]:
        wrong.append(f"after SIGSEGV: {found['after_segv']}")
    began = time.monotonic()
    again.pool.stop(3_000)
    found["stop_s"] = round(time.monotonic() - began, 2)
    found["wrong"] = wrong
    print(
        json.dumps({name: value for name, value in found.items() if name != "polls"}, indent=1, default=str)
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, default=str))
    print("as it should be" if not wrong else f"WRONG: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
