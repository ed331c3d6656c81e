"""What makes the daemon healthy, and what is said where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soak.core.snapshot import CardSnapshot, Snapshot
from soak.web.health import is_ready, trouble
from tests.web.scenes import GPU, SECOND, at_hour, before_t0, played


def silent(snapshot: Snapshot, index: int = 0, *, polls_ms: int = 0, steps_ms: int = 0) -> Snapshot:
    """The snapshot, with the last poll and the last step of a card that long ago."""
    cards = list(snapshot.cards)
    card = cards[index]
    assert card.poll is not None
    assert card.progress is not None
    cards[index] = replace(
        card,
        poll=replace(card.poll, boot_ms=snapshot.boot_ms - polls_ms),
        poll_utc_ms=snapshot.utc_ms - polls_ms,
        progress=replace(card.progress, last_step_boot_ms=snapshot.boot_ms - steps_ms),
    )
    return replace(snapshot, cards=tuple(cards))


def test_a_run_at_work_is_healthy() -> None:
    assert trouble(at_hour("healthy", 20, 2), 1_000) == ""


def test_before_the_first_snapshot_nothing_is_proven() -> None:
    assert trouble(None, 0) == "the run has not been heard of yet"
    assert not is_ready(None)


def test_before_t0_a_daemon_that_waits_is_healthy_and_not_ready() -> None:
    assert trouble(before_t0(), 1_000) == ""
    assert trouble(before_t0(), 6_000) == "the run's loop has been silent for 6 s"
    assert not is_ready(before_t0())
    assert is_ready(at_hour("healthy", 20))


def test_a_loop_that_stands_still_is_said() -> None:
    assert trouble(at_hour("healthy", 20), 5_000) == ""
    assert trouble(at_hour("healthy", 20), 7_000) == "the run's loop has been silent for 7 s"


def test_a_silent_sampler_is_said_before_it_is_replaced() -> None:
    assert trouble(silent(at_hour("healthy", 20), polls_ms=3_900), 1_000) == ""
    assert trouble(silent(at_hour("healthy", 20), polls_ms=4_200), 1_000) == f"no reading of {GPU} for 4 s"


def test_a_slow_poll_has_four_intervals() -> None:
    snapshot = at_hour("healthy", 20)
    slow = replace(snapshot, protocol=replace(snapshot.protocol, poll_ms=60_000))
    assert trouble(silent(slow, polls_ms=239_000), 0) == ""
    assert trouble(silent(slow, polls_ms=241_000), 0) == f"no reading of {GPU} for 241 s"


def test_steps_that_do_not_finish_are_said() -> None:
    snapshot = at_hour("healthy", 20, 2)
    assert trouble(silent(snapshot, 1, steps_ms=9_000), 0) == ""
    assert trouble(silent(snapshot, 1, steps_ms=11_000), 0) == f"no step finished on {SECOND} for 11 s"


def test_long_steps_have_five_times_their_length() -> None:
    snapshot = at_hour("healthy", 20)
    progress = snapshot.cards[0].progress
    assert progress is not None
    card = replace(snapshot.cards[0], progress=replace(progress, expected_step_ms=6_000.0))
    slow = replace(snapshot, cards=(card,))
    assert trouble(silent(slow, steps_ms=29_000), 0) == ""
    assert trouble(silent(slow, steps_ms=31_000), 0) == f"no step finished on {GPU} for 31 s"


def test_a_hang_is_seen_in_a_real_run() -> None:
    during = [s for s in played("hang", 1, 4, 1) if trouble(s, 0)]
    assert during
    assert {trouble(s, 0).rsplit(" for ")[0] for s in during} == {f"no step finished on {GPU}"}


def test_polls_that_read_nothing_are_no_readings() -> None:
    """A driver that hangs: the sampler goes on telling that there is no answer."""
    snapshot = at_hour("healthy", 20)
    (card,) = snapshot.cards
    polled_now = replace(silent(snapshot, polls_ms=9_000).cards[0], poll=card.poll)
    assert trouble(replace(snapshot, cards=(polled_now,)), 0) == f"no reading of {GPU} for 9 s"


def test_a_card_that_is_out_does_not_make_the_daemon_sick() -> None:
    snapshot = silent(at_hour("healthy", 20, 2), polls_ms=60_000, steps_ms=60_000)

    def changed(**changes: bool) -> Snapshot:
        card: CardSnapshot = replace(snapshot.cards[0], **changes)
        return replace(snapshot, cards=(card, snapshot.cards[1]))

    assert trouble(snapshot, 0) == f"no reading of {GPU} for 60 s; no step finished on {GPU} for 60 s"
    assert trouble(changed(is_out=True), 0) == ""
    assert trouble(changed(up=False), 0) == ""


def test_a_card_that_was_never_heard_of_is_waited_for_from_t0_on() -> None:
    begun = at_hour("healthy", 0)
    mute = replace(begun, cards=(replace(begun.cards[0], poll=None, poll_utc_ms=None, progress=None),))
    at_3_s = replace(mute, elapsed_ms=3_000)
    at_12_s = replace(mute, elapsed_ms=12_000)
    assert trouble(at_3_s, 0) == ""
    assert trouble(at_12_s, 0) == f"no reading of {GPU} for 12 s; no step finished on {GPU} for 12 s"


@pytest.mark.parametrize("state", ["completed", "interrupted", "failed"])
def test_a_run_that_is_over_is_healthy_however_old(state: str) -> None:
    over = replace(silent(at_hour("healthy", 20), polls_ms=60_000), state=state)
    assert trouble(over, 3_600_000) == ""
    assert is_ready(over)
