"""Findings to verdicts: of a card, of a run; the same fold live and from stored rows."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from soak.core.criteria import ALL, Card, Criterion, Evidence, Standing, finding
from soak.core.incidents import KINDS
from soak.core.protocol import Protocol
from soak.core.records import (
    Attempt,
    Device,
    Finding,
    Incident,
    ReadingStatus,
    RunRecord,
    Slot,
    State,
    Verdict,
)


class CardJudge:
    """Judges one card in one attempt: folds every record once, concludes as often as asked."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._criteria: list[Criterion] = [criterion(card) for criterion in ALL]
        self._worst: dict[str, Incident] = {}  # by criterion: the incident that weighs most, the earliest

    def fold(self, record: Evidence) -> None:
        """Takes a record of this card (or an incident of the whole run) that will not change any more."""
        for criterion in self._criteria:
            criterion.fold(record)
        if isinstance(record, Incident):
            self._weigh(record)

    def findings(self, standing: Standing, still_open: Iterable[Evidence] = ()) -> tuple[Finding, ...]:
        """One finding a criterion. `still_open`: records that may yet change; they are not kept."""
        opened = list(still_open)
        criteria = [copy.copy(criterion) for criterion in self._criteria] if opened else self._criteria
        for criterion in criteria:
            for record in opened:
                criterion.fold(record)
        return tuple(
            self._with_incident(finding(self._card, criterion.name, criterion.conclude(standing)))
            for criterion in criteria
        )

    def _weigh(self, incident: Incident) -> None:
        effect = KINDS[incident.kind]
        if effect.criterion is None:
            return
        held = self._worst.get(effect.criterion)
        if held is None or _weight(incident) < _weight(held):
            self._worst[effect.criterion] = incident

    def _with_incident(self, found: Finding) -> Finding:
        incident = self._worst.get(found.criterion)
        if incident is not None:
            effect = KINDS[incident.kind]
            assert effect.state is not None
            words = f"{incident.kind.replace('_', ' ')}: {incident.detail}".removesuffix(": ")
            if effect.state is found.state:
                found = replace(found, reason=f"{found.reason}; {words}")
            elif found.state is not State.FAIL:
                found = replace(
                    found, state=effect.state, reason=words, cause=effect.cause, at_ms=incident.at_ms
                )
        return replace(found, waived=True) if self._is_waived(found) else found

    def _is_waived(self, found: Finding) -> bool:
        """`--waive ecc` covers ECC that was unsupported at t0, and nothing else."""
        return (
            found.criterion == "ecc"
            and "ecc" in self._card.waived
            and found.state is State.UNKNOWN
            and self._card.device.ecc.status is ReadingStatus.UNSUPPORTED
        )


def _weight(incident: Incident) -> tuple[bool, int, int]:
    return KINDS[incident.kind].state is not State.FAIL, incident.at_ms, incident.seq


def card_verdict(findings: Sequence[Finding]) -> Verdict:
    """FAIL if a required criterion failed, PASS if every one passed (or is waived), else INCONCLUSIVE."""
    required = [f for f in findings if f.required]
    if any(f.state is State.FAIL for f in required):
        return Verdict.FAIL
    if required and all(f.state is State.PASS or f.waived for f in required):
        return Verdict.PASS
    return Verdict.INCONCLUSIVE


def run_verdict(cards: Iterable[Verdict]) -> Verdict:
    """The worst of the cards'; of no cards, INCONCLUSIVE."""
    verdicts = list(cards)
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.PASS if verdicts and set(verdicts) == {Verdict.PASS} else Verdict.INCONCLUSIVE


def combined(earlier: Sequence[Finding], last: Sequence[Finding]) -> tuple[Finding, ...]:
    """A fail in any attempt is final; everything else is judged on the last attempt."""
    failed = {f.criterion: f for f in reversed(earlier) if f.state is State.FAIL}
    return tuple(failed.get(f.criterion, f) for f in last)


@dataclass(frozen=True, slots=True)
class CardJudgement:
    device: Device
    verdict: Verdict
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A run's verdict, with everything it rests on."""

    verdict: Verdict
    cards: tuple[CardJudgement, ...]
    waived: tuple[str, ...] = ()  # criteria that a waiver covered on some card
    complete: bool = False  # the last attempt has ended
    by_attempt: Mapping[int, Mapping[str, tuple[Finding, ...]]] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The verdict as it is written everywhere: `PASS`, `PASS, ecc waived`, `FAIL`, `INCONCLUSIVE`."""
        text = self.verdict.upper()
        return (
            f"{text}, {', '.join(self.waived)} waived"
            if self.waived and self.verdict is Verdict.PASS
            else text
        )


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier attempts leave behind on a card: fails are final, and an unclean reboot stays in doubt."""

    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()


def earlier_attempts(record: RunRecord, protocol: Protocol, device: Device, attempt: int) -> Earlier:
    """Of the attempts before `attempt`, from their rows."""
    found = tuple(
        finding
        for before in record.attempts
        if before.number < attempt
        for finding in attempt_findings(record, protocol, device, before)
    )
    return Earlier(found, tuple(_lasting_incidents(record, device.gpu, attempt)))


def judge(record: RunRecord, protocol: Protocol) -> Judgement:
    """The verdict recomputed from stored rows: the fold of the live run over what the store holds."""
    cards = []
    by_attempt: dict[int, dict[str, tuple[Finding, ...]]] = {a.number: {} for a in record.attempts}
    for device in record.info.devices:
        earlier: list[Finding] = []
        found: tuple[Finding, ...] = ()
        for attempt in record.attempts or (_never_begun(),):
            earlier += found
            found = attempt_findings(record, protocol, device, attempt)
            by_attempt.setdefault(attempt.number, {})[device.gpu] = found
        findings = combined(earlier, found)
        cards.append(CardJudgement(device, card_verdict(findings), findings))
    complete = bool(record.attempts) and has_ended(record.attempts[-1])
    return judgement(cards, complete=complete, by_attempt=by_attempt)


def judgement(
    cards: Sequence[CardJudgement],
    *,
    complete: bool,
    by_attempt: Mapping[int, Mapping[str, tuple[Finding, ...]]] | None = None,
) -> Judgement:
    """The run's verdict from its cards'."""
    waived = sorted({f.criterion for card in cards for f in card.findings if f.waived and f.required})
    verdict = run_verdict(card.verdict for card in cards)
    return Judgement(verdict, tuple(cards), tuple(waived), complete, by_attempt or {})


def attempt_findings(
    record: RunRecord, protocol: Protocol, device: Device, attempt: Attempt
) -> tuple[Finding, ...]:
    """One card's findings in one attempt, from its rows."""
    judge_of_card = CardJudge(Card(device, protocol, attempt.stretches, frozenset(record.info.waived)))
    for row in _rows_of(record, device.gpu, attempt.number):
        judge_of_card.fold(row)
    return judge_of_card.findings(standing_of(record, attempt))


def standing_of(record: RunRecord, attempt: Attempt) -> Standing:
    """Where a stored attempt stands; the closing record is held against the rows that are there."""
    if not has_ended(attempt):
        return Standing(attempt.elapsed_ms)
    return Standing(attempt.elapsed_ms, ended=True, closing=closing_fault(attempt, record.rows))


def has_ended(attempt: Attempt) -> bool:
    return attempt.end != "running"


def closing_fault(attempt: Attempt, rows: Mapping[str, int]) -> str:
    """What is wrong with an attempt's closing record; "" where it is there and met."""
    closing = attempt.closing
    if closing is None:
        return "there is no closing record"
    if closing.dropped:
        return f"{closing.dropped} rows were dropped"
    differing = [
        f"{table}: {rows.get(table, 0)} of {closing.rows.get(table, 0)} rows"
        for table in sorted({*closing.rows, *rows})
        if rows.get(table, 0) != closing.rows.get(table, 0)
    ]
    return f"rows are missing or were added ({', '.join(differing)})" if differing or not closing.rows else ""


def _rows_of(record: RunRecord, gpu: str, attempt: int) -> Iterable[Evidence]:
    rows: list[Sequence[Slot | Evidence]] = [record.slots, record.gradient_checks, record.integrity_checks]
    for table in rows:
        yield from (row for row in table if row.gpu == gpu and row.attempt == attempt)
    for incident in record.incidents:
        if incident.gpu in (gpu, None) and incident.attempt == attempt:
            yield incident
    yield from _lasting_incidents(record, gpu, attempt)


def _lasting_incidents(record: RunRecord, gpu: str, attempt: int) -> Iterable[Incident]:
    for incident in record.incidents:
        if incident.kind == "unclean_reboot" and incident.attempt < attempt and incident.gpu in (gpu, None):
            yield incident


def _never_begun() -> Attempt:
    return Attempt(number=0, started_utc_ms=0, boot_id="", stretches=())
