"""Whether a worker makes progress, and if it does not, whose doing that is. Pure: time and looks are handed
in.

A deadline of silence alone would blame the card for a stopped worker, a starved host or a parent that slept.
So only the time in which worker and parent could run counts towards it: no time while the worker is stopped,
none between two looks that are far apart, and while threads wait for a core only the processor time that they
got.
"""

from __future__ import annotations

from dataclasses import dataclass

from soak.core.ports import Progress
from soak.load.process import ProcessLook


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits on waiting, milliseconds."""

    progress_ms: int = 60_000  # without a finished step: the larger of this and
    progress_steps: int = 10  # that many expected steps
    ready_again_ms: int = 600_000  # for a restarted worker to become ready
    look_every_ms: int = 1_000
    parent_gap_ms: int = 5_000  # looks further apart: the parent itself did not run
    term_ms: int = 1_000  # from SIGTERM to SIGKILL
    kill_ms: int = 10_000  # from SIGKILL until the worker is given up
    restarts: int = 3


@dataclass(frozen=True, slots=True)
class Doubt:
    """`kind`: no_progress, host_starved or worker_stopped, with the evidence."""

    kind: str
    detail: str
    data: dict[str, int | str]


class Watch:
    """Of one incarnation of a worker."""

    def __init__(self, patience: Patience, now_ms: int, n_lanes: int = 1) -> None:
        self._patience = patience
        self._n_lanes = n_lanes  # cores that its work needs
        self._deadline_ms = patience.ready_again_ms
        self._last_step_ms = now_ms
        self._looked_ms = now_ms
        self._cpu_ms: int | None = None
        self._could_run_ms = 0
        self._told: set[str] = set()
        self.in_step_since_ms: int | None = None

    def ready(self, now_ms: int, n_lanes: int, step_ms: float) -> None:
        """From here on steps have to come."""
        self._n_lanes, self._looked_ms = n_lanes, now_ms
        self._deadline_ms = self._deadline(step_ms)
        self._stepped(now_ms)

    def progress(self, progress: Progress) -> None:
        self._deadline_ms = self._deadline(progress.expected_step_ms)
        if progress.last_step_boot_ms is not None and progress.last_step_boot_ms > self._last_step_ms:
            self._stepped(progress.last_step_boot_ms)

    def due(self, now_ms: int) -> bool:
        """Whether it is time for a look."""
        return now_ms - self._looked_ms >= self._patience.look_every_ms

    def look(self, now_ms: int, process: ProcessLook) -> Doubt | None:
        """What this look says; each doubt once until a step is finished. no_progress is final."""
        passed_ms = now_ms - self._looked_ms
        got_ms = process.cpu_ms - self._cpu_ms if self._cpu_ms is not None else passed_ms
        self._looked_ms, self._cpu_ms = now_ms, process.cpu_ms
        if process.stopped:
            return self._tell(
                "worker_stopped", "the worker was stopped from outside (SIGSTOP)", now_ms, process
            )
        silence_ms = now_ms - self._last_step_ms
        parent_ran = passed_ms <= self._patience.parent_gap_ms
        if parent_ran:
            waiting = process.n_runnable > 0
            could_run_ms = min(passed_ms, got_ms // self._n_lanes) if waiting else passed_ms
            self._could_run_ms = min(self._could_run_ms + could_run_ms, silence_ms)
        if self._could_run_ms > self._deadline_ms:
            sentence = f"no step was finished for {silence_ms / 1000:.0f} s"
            return self._tell("no_progress", sentence, now_ms, process)
        mostly_starved = 2 * self._could_run_ms < silence_ms and "worker_stopped" not in self._told
        if parent_ran and silence_ms > self._deadline_ms and mostly_starved:
            sentence = (
                f"no step was finished for {silence_ms / 1000:.0f} s, but worker and parent could run "
                f"for only {self._could_run_ms / 1000:.0f} s of them"
            )
            return self._tell("host_starved", sentence, now_ms, process)
        return None

    def _deadline(self, step_ms: float) -> int:
        return max(self._patience.progress_ms, int(self._patience.progress_steps * step_ms))

    def _stepped(self, at_ms: int) -> None:
        self._last_step_ms = at_ms
        self._could_run_ms = 0
        self._told.clear()

    def _tell(self, kind: str, sentence: str, now_ms: int, process: ProcessLook) -> Doubt | None:
        if kind in self._told:
            return None
        self._told.add(kind)
        data: dict[str, int | str] = {
            "silence_ms": now_ms - self._last_step_ms,
            "could_run_ms": self._could_run_ms,
            "deadline_ms": self._deadline_ms,
            "state": process.state,
            "threads_runnable": process.n_runnable,
            "cpu_ms": process.cpu_ms,
        }
        if self.in_step_since_ms is not None:
            data["in_step_ms"] = now_ms - self.in_step_since_ms
        return Doubt(kind, sentence, data)
