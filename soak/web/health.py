"""Whether the daemon makes progress, from the last snapshot and its age."""

from __future__ import annotations

from soak.core.snapshot import CardSnapshot, Snapshot

SNAPSHOT_MS = 5_000  # the run makes a snapshot a second
POLLS = 4  # a silent sampler is replaced after five
POLL_MS = 4_000  # at least
STEPS = 5
STEP_MS = 10_000  # at least

OVER = ("completed", "interrupted", "failed")


def is_over(snapshot: Snapshot) -> bool:
    """Whether nothing will change any more."""
    return snapshot.state in OVER


def is_ready(snapshot: Snapshot | None) -> bool:
    """Whether t0 is set: every card has finished a step."""
    return snapshot is not None and bool(snapshot.attempt.stretches)


def trouble(snapshot: Snapshot | None, age_ms: int) -> str:
    """What keeps the daemon from making progress, in words; "" where it makes progress or the run is over."""
    if snapshot is None:
        return "the run has not been heard of yet"
    if is_over(snapshot):
        return ""
    if age_ms > SNAPSHOT_MS:
        return f"the run's loop has been silent for {age_ms / 1000:.0f} s"
    if not is_ready(snapshot):
        return ""
    working = [card for card in snapshot.cards if card.up and not card.is_out]
    return "; ".join(reason for card in working for reason in _troubles(snapshot, card))


def _troubles(snapshot: Snapshot, card: CardSnapshot) -> list[str]:
    """As of the snapshot; what was never heard of is waited for from the start of the stretch on."""
    begun_ms = snapshot.boot_ms - snapshot.elapsed_ms + snapshot.attempt.stretches[-1].start_ms
    offset_ms = snapshot.utc_ms - snapshot.boot_ms
    read_ms = begun_ms if card.poll_utc_ms is None else card.poll_utc_ms - offset_ms
    progress = card.progress
    stepped_ms = None if progress is None else progress.last_step_boot_ms
    patience_ms = STEPS * (0.0 if progress is None else progress.expected_step_ms)
    unread_ms = snapshot.boot_ms - read_ms
    idle_ms = snapshot.boot_ms - (begun_ms if stepped_ms is None else stepped_ms)
    gpu, found = card.device.gpu, []
    if unread_ms > max(POLL_MS, POLLS * snapshot.protocol.poll_ms):
        found.append(f"no reading of {gpu} for {unread_ms / 1000:.0f} s")
    if idle_ms > max(STEP_MS, patience_ms):
        found.append(f"no step finished on {gpu} for {idle_ms / 1000:.0f} s")
    return found
