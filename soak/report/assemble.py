"""Records and a verdict that was already reached, to a document. No judging here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from soak.core.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from soak.core.incidents import KINDS
from soak.core.protocol import Protocol
from soak.core.records import Attempt, Finding, Incident, RunRecord, State, Verdict
from soak.core.verdict import CardJudgement, Judgement
from soak.core.verdict import judgement as judgement_of
from soak.report import advice, figures
from soak.report import card_document as c
from soak.report import document as d
from soak.report.wording import limit_text, title, utc, value_text

EXIT_CODES = {Verdict.PASS: EXIT_PASS, Verdict.FAIL: EXIT_FAIL, Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE}
SILENT_AFTER_MS = 60_000  # as a lease without renewal


def assemble(
    record: RunRecord, judgement: Judgement, protocol: Protocol, now_utc_ms: int, utc_offset_min: int = 0
) -> d.Document:
    """The report of a run as it stands at `now_utc_ms`; `utc_offset_min` is the reader's local time."""
    incidents = tuple(_incident(i) for i in sorted(record.incidents, key=_moment))
    cards = tuple(_card(record, card, judgement, protocol) for card in judgement.cards)
    run = _run(record, protocol, now_utc_ms)
    return d.Document(
        schema=d.SCHEMA,
        schema_version=d.SCHEMA_VERSION,
        generated_utc=utc(now_utc_ms),
        utc_offset_min=utc_offset_min,
        run=run,
        verdict=_summary(record, judgement),
        protocol=_plan(protocol),
        attempts=tuple(_attempt(a) for a in record.attempts),
        cards=cards,
        incidents=incidents,
        advice=_advice(cards, incidents, unproven=run.state not in ("starting", "running")),
        does_not_mean=_does_not_mean(record, judgement),
    )


def _run(record: RunRecord, protocol: Protocol, now_utc_ms: int) -> d.Run:
    info = record.info
    last = record.attempts[-1] if record.attempts else None
    state, silent_s = state_of(record, now_utc_ms)
    return d.Run(
        run_id=info.run_id,
        state=state,
        simulated=info.simulated,
        profile=info.profile,
        profile_reason=info.profile_reason,
        seed=info.seed,
        kernel=info.kernel,
        host_id=info.host_id,
        created_utc=utc(info.created_utc_ms),
        started_utc=utc(last.started_utc_ms) if last else None,
        ended_utc=utc(last.ended_utc_ms) if last else None,
        planned_s=protocol.duration_ms / 1000,
        elapsed_s=last.elapsed_ms / 1000 if last else 0.0,
        silent_s=silent_s,
        waived=tuple(info.waived),
        labels=dict(sorted(info.labels.items())),
        versions=dict(sorted(info.versions.items())),
        config=plain(_without_passwords(info.config)),
    )


def state_of(record: RunRecord, now_utc_ms: int) -> tuple[str, float | None]:
    """The run's state, and for how many seconds a run that is still marked running was not heard of, where
    that is too long. Simulated time says nothing about now."""
    if not record.attempts:
        return "starting", None
    last = record.attempts[-1]
    seen_ms = figures.utc_at(last, last.elapsed_ms)
    silent_ms = now_utc_ms - (last.started_utc_ms if seen_ms is None else seen_ms)
    if last.end == "running" and silent_ms > SILENT_AFTER_MS and not record.info.simulated:
        return "silent", silent_ms / 1000
    return last.end, None


def _without_passwords(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A report is shown around: a database's password is not its business."""
    return {
        key: re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", value) if isinstance(value, str) else value
        for key, value in config.items()
    }


def _summary(record: RunRecord, judgement: Judgement) -> d.Summary:
    findings = [f for card in judgement.cards for f in card.findings if f.required]
    failed = [f for f in findings if f.state is State.FAIL]
    unproven = [f for f in findings if f.state is State.UNKNOWN and not f.waived]
    reasons = [f"{f.gpu} {f.criterion}: {f.reason}" for f in failed + unproven]
    if not findings:
        reasons = ["no criterion was judged on any card"]
    return d.Summary(
        verdict=str(judgement.verdict),
        title=title(judgement, simulated=record.info.simulated),
        causes=tuple(dict.fromkeys(str(f.cause) for f in failed if f.cause)),
        waived=judgement.waived,
        final=judgement.verdict is Verdict.FAIL or _is_over(record),
        exit_code=EXIT_CODES[judgement.verdict],
        reasons=tuple(reasons),
    )


def _is_over(record: RunRecord) -> bool:
    """Whether nothing can come any more; an interrupted run may be taken up again."""
    return bool(record.attempts) and record.attempts[-1].end in ("completed", "failed")


def _plan(protocol: Protocol) -> d.Plan:
    limits = {k: v for k, v in asdict(protocol.limits).items() if k != "required"}
    return d.Plan(
        duration_s=protocol.duration_ms / 1000,
        rotate_every_s=protocol.rotate_ms / 1000,
        check_every_s=protocol.check_ms / 1000,
        sample_every_s=protocol.sample_ms / 1000,
        poll_every_s=protocol.poll_ms / 1000,
        warmup_s=protocol.warmup_ms / 1000,
        seq_len_min=protocol.seq_len_min,
        seq_len_max=protocol.seq_len_max,
        heads=protocol.heads,
        head_dim=protocol.head_dim,
        tokens=protocol.tokens,
        dtype=protocol.dtype,
        compare_every_steps=protocol.compare_every,
        work_rate_rule=protocol.work_rate_rule,
        required=tuple(sorted(protocol.limits.required)),
        limits=limits,
    )


def _attempt(attempt: Attempt) -> d.AttemptLine:
    return d.AttemptLine(
        number=attempt.number,
        started_utc=utc(attempt.started_utc_ms),
        ended_utc=utc(attempt.ended_utc_ms),
        end=attempt.end,
        reason=attempt.reason,
        elapsed_s=attempt.elapsed_ms / 1000,
        stretches=tuple(d.StretchLine(s.start_ms / 1000, utc(s.utc_ms)) for s in attempt.stretches),
        rows=dict(sorted(attempt.closing.rows.items())) if attempt.closing else None,
        rows_dropped=attempt.closing.dropped if attempt.closing else None,
    )


def _card(record: RunRecord, card: CardJudgement, judgement: Judgement, protocol: Protocol) -> c.Card:
    device = card.device
    rows = figures.CardRows(record, device, protocol)
    return c.Card(
        gpu=device.gpu,
        index=device.index,
        vendor=device.vendor,
        model=device.model,
        arch=device.arch,
        uuid=device.uuid,
        driver=device.driver,
        vbios=device.vbios,
        memory_total_bytes=device.memory_total_bytes,
        temperature_sensor=str(device.temperature_sensor) if device.temperature_sensor else None,
        slowdown_c=device.slowdown_c,
        power_cap_w=device.power_cap_w,
        kernel=device.kernel,
        kernel_reason=device.kernel_reason,
        load=plain(device.load),
        notes=device.notes,
        not_offered=figures.not_offered(device),
        verdict=str(card.verdict),
        title=title(judgement_of([card], complete=judgement.complete), simulated=record.info.simulated),
        criteria=tuple(_criterion(f, record, judgement, protocol) for f in card.findings),
        coverage=figures.coverage(rows),
        utilisation=figures.utilisation(rows),
        readings=figures.readings(rows),
        ecc=figures.ecc(rows),
        throughput=figures.work(rows),
        gradient=figures.gradient(rows),
        integrity=figures.integrity(rows),
        rotations=figures.rotations(rows),
        samples=figures.samples(rows),
    )


def _criterion(f: Finding, record: RunRecord, judgement: Judgement, protocol: Protocol) -> c.Criterion:
    attempt = _deciding(f, record.attempts, judgement)
    first_ms = figures.utc_at(attempt, f.at_ms) if attempt is not None and f.at_ms is not None else None
    return c.Criterion(
        criterion=f.criterion,
        state=str(f.state),
        required=f.required,
        waived=f.waived,
        value=f.value,
        threshold=f.threshold,
        unit=f.unit,
        value_text=value_text(f.criterion, f.value, f.unit),
        limit_text=limit_text(f.criterion, f.threshold, protocol.limits),
        reason=f.reason,
        cause=str(f.cause) if f.cause else None,
        attempt=attempt.number if attempt is not None else None,
        first_violation_s=f.at_ms / 1000 if f.at_ms is not None else None,
        first_violation_utc=utc(first_ms),
    )


def _deciding(f: Finding, attempts: Sequence[Attempt], judgement: Judgement) -> Attempt | None:
    """The attempt that a finding speaks of: a fail may be an earlier one's, anything else is the last's."""
    for attempt in attempts if f.state is State.FAIL else ():
        if f in judgement.by_attempt.get(attempt.number, {}).get(f.gpu, ()):
            return attempt
    return attempts[-1] if attempts else None


def _moment(incident: Incident) -> tuple[int, int, int]:
    return incident.attempt, incident.at_ms, incident.seq


def _incident(i: Incident) -> d.IncidentLine:
    effect = KINDS.get(i.kind)
    return d.IncidentLine(
        attempt=i.attempt,
        seq=i.seq,
        at_s=i.at_ms / 1000,
        at_utc=utc(i.utc_ms),
        gpu=i.gpu,
        kind=i.kind,
        meaning=effect.meaning if effect else "",
        detail=i.detail,
        data=plain(i.data),
        criterion=effect.criterion if effect else None,
        effect=str(effect.state) if effect and effect.state else None,
        cause=str(effect.cause) if effect and effect.cause else None,
    )


def _advice(
    cards: Sequence[c.Card], incidents: Sequence[d.IncidentLine], *, unproven: bool
) -> tuple[d.Advice, ...]:
    """For each kind of trouble of this run, once, with the cards it befell. `unproven`: also for what is
    unknown, which in a run that goes on is no trouble."""
    befell: dict[tuple[str, advice.Remedy], dict[str, None]] = {}
    for card in cards:
        for found in card.criteria:
            remedy = advice.FINDINGS.get(f"{found.criterion}/{found.state}")
            told = found.state == "fail" or (unproven and not found.waived)
            if remedy is not None and found.required and told:
                befell.setdefault((f"{found.criterion}: {found.state}", remedy), {})[card.gpu] = None
    for incident in incidents:
        remedy = advice.INCIDENTS.get(incident.kind)
        if remedy is not None:
            held = befell.setdefault((incident.kind.replace("_", " "), remedy), {})
            held.update({incident.gpu: None} if incident.gpu else {})
    return tuple(d.Advice(about, tuple(gpus), r.causes, r.next_steps) for (about, r), gpus in befell.items())


def _does_not_mean(record: RunRecord, judgement: Judgement) -> tuple[str, ...]:
    lines = [advice.SIMULATED_NOT] if record.info.simulated else []
    if any(device.vendor == "cpu" for device in record.info.devices):
        lines.append(advice.CPU_NOT)
    lines += [advice.WAIVED_NOT.format(waived=name) for name in judgement.waived]
    return (*lines, *advice.CERTIFIES_NOT)


def plain(value: Any) -> Any:
    """Foreign data as what JSON knows: mappings with string keys, lists, strings, numbers, booleans, None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, bool | int | float):
        return value
    return plain(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else str(value)
