"""What a start does with what it finds: a new run, another attempt, a continuation, or nothing any more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from soak.core.ports import Happening
from soak.core.records import Attempt, RunRecord, Stretch, Verdict


class OnInterrupt(StrEnum):
    RESTART_CLOCK = "restart-clock"
    CONTINUE = "continue"
    STOP = "stop"


class What(StrEnum):
    NEW = "new"  # a run that does not exist yet
    ATTEMPT = "attempt"  # the same run, the clock starting again
    CONTINUE = "continue"  # the same attempt, for the time that remains
    FINISHED = "finished"  # nothing is run: the verdict stands
    CLOSE = "close"  # the old run is closed as it is, a new one begins


@dataclass(frozen=True, slots=True)
class Decision:
    """`before`: the run that was found. `ended`: its last attempt as it has to be written before anything
    else, where it was left without an end."""

    what: What
    reason: str
    before: RunRecord | None = None
    attempt: int = 1
    ended: Attempt | None = None
    happened: tuple[Happening, ...] = ()


def is_finished(record: RunRecord, verdict: Verdict) -> bool:
    """A run that reached an end of its own, or failed for good."""
    if verdict is Verdict.FAIL:
        return True
    return bool(record.attempts) and record.attempts[-1].end in ("completed", "failed", "closed")


def decide(
    found: RunRecord | None,
    verdict: Verdict | None,
    *,
    on_interrupt: OnInterrupt,
    by_id: bool,
    boot_id: str,
    boot_ms: int,
    utc_ms: int,
) -> Decision:
    """Decides on a start.

    `found`: the run named by `--run-id` (`by_id`), else the newest run of this host, these devices and this
    protocol; None where there is none. `verdict`: as folded from its rows.
    """
    if found is None or verdict is None:
        return Decision(What.NEW, "there is no earlier run to take up")
    run_id = found.info.run_id
    if is_finished(found, verdict):
        ended = _ended(found.attempts[-1], boot_id, boot_ms, utc_ms)[0] if found.attempts else None
        if by_id:
            return Decision(What.FINISHED, f"run {run_id} is finished", found, ended=ended)
        return Decision(What.NEW, f"run {run_id} is finished", found, ended=ended)
    if not found.attempts:
        return Decision(What.ATTEMPT, f"run {run_id} had not begun", found)
    ended, happened = _ended(found.attempts[-1], boot_id, boot_ms, utc_ms)
    last = found.attempts[-1]
    if on_interrupt is OnInterrupt.STOP:
        closed = replace(ended or last, end="closed", reason="closed by a later start (--on-interrupt stop)")
        what = What.FINISHED if by_id else What.CLOSE
        return Decision(what, f"run {run_id} was interrupted and is closed", found, ended=closed)
    if on_interrupt is OnInterrupt.CONTINUE:
        reason = f"run {run_id} was interrupted after {last.elapsed_ms / 1000:.0f} s and goes on"
        return Decision(What.CONTINUE, reason, found, last.number, ended, happened)
    reason = f"run {run_id} was interrupted after {last.elapsed_ms / 1000:.0f} s; its clock starts again"
    return Decision(What.ATTEMPT, reason, found, last.number + 1, ended, happened)


def _ended(
    last: Attempt, boot_id: str, boot_ms: int, utc_ms: int
) -> tuple[Attempt | None, tuple[Happening, ...]]:
    """An attempt left without an end: how it ended, and what that says about the machine."""
    if last.end != "running":
        return None, (Happening("resumed", boot_ms, None, f"after: {last.end} {last.reason}".rstrip()),)
    if last.boot_id == boot_id:
        reason = "the daemon was killed"
        happening = Happening("resumed", boot_ms, None, reason)
    else:
        reason = "the machine went down"
        happening = Happening("unclean_reboot", boot_ms, None, "the machine went down without a closing")
    stretch = last.stretches[-1] if last.stretches else Stretch(0, last.started_utc_ms)
    # It ended with its last record, not now.
    seen_utc_ms = min(stretch.utc_ms + last.elapsed_ms - stretch.start_ms, utc_ms)
    return replace(last, end="interrupted", reason=reason, ended_utc_ms=seen_utc_ms), (happening,)
