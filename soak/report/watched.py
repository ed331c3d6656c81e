"""The report of a run in progress, read back from its JSON, as a snapshot: so that a run elsewhere is shown
by the same live view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

import msgspec

from soak.core.protocol import Limits, Protocol, Shape
from soak.core.records import (
    Attempt,
    Cause,
    Device,
    Finding,
    Incident,
    Poll,
    Quantity,
    Reading,
    RunInfo,
    State,
    Verdict,
)
from soak.core.snapshot import CardSnapshot, Snapshot
from soak.report.card_document import Card, Sample
from soak.report.document import SCHEMA, SCHEMA_VERSION, Document, Plan

INCIDENTS_KEPT = 20


class NotAReport(ValueError):
    """A text that is no report, or one of another version; says why."""


class _Kind(msgspec.Struct):
    schema: str
    schema_version: int


def document_from_json(text: bytes) -> Document:
    """What `as_json` wrote; "NaN" and its like become numbers again. Raises NotAReport."""
    try:
        kind = msgspec.json.decode(text, type=_Kind)
        if (kind.schema, kind.schema_version) != (SCHEMA, SCHEMA_VERSION):
            raise NotAReport(
                f"it is {kind.schema} {kind.schema_version}, this program reads {SCHEMA} {SCHEMA_VERSION}"
            )
        return msgspec.json.decode(text, type=Document, strict=False)
    except msgspec.DecodeError as error:
        raise NotAReport(str(error)) from error


def snapshot_of(document: Document) -> Snapshot:
    """The run as its report tells it. What only the daemon knows (the poll of this second) is absent or as
    of the last row."""
    run = document.run
    devices = tuple(_device(card) for card in document.cards)
    last = document.attempts[-1] if document.attempts else None
    utc_ms = _utc_ms(document.generated_utc) or 0
    return Snapshot(
        info=RunInfo(
            run_id=run.run_id,
            created_utc_ms=_utc_ms(run.created_utc) or 0,
            host_id=run.host_id,
            profile=run.profile,
            profile_reason=run.profile_reason,
            seed=run.seed,
            kernel=run.kernel,
            simulated=run.simulated,
            devices=devices,
            config=run.config,
        ),
        protocol=_protocol(document.protocol, run.seed),
        state=run.state,
        verdict=Verdict(document.verdict.verdict),
        attempt=Attempt(last.number if last else 0, _utc_ms(run.started_utc) or 0, "", ()),
        elapsed_ms=round(run.elapsed_s * 1000),
        boot_ms=0,
        utc_ms=utc_ms,
        shape=_shape(document),
        cards=tuple(
            _card(card, device, utc_ms) for card, device in zip(document.cards, devices, strict=True)
        ),
        n_incidents=Counter((i.gpu, i.kind) for i in document.incidents),
        incidents=tuple(_incidents(document)),
    )


def _protocol(plan: Plan, seed: int) -> Protocol:
    limits = {"required": list(plan.required), **plan.limits}
    return Protocol(
        duration_ms=round(plan.duration_s * 1000),
        rotate_ms=round(plan.rotate_every_s * 1000),
        check_ms=round(plan.check_every_s * 1000),
        sample_ms=round(plan.sample_every_s * 1000),
        poll_ms=round(plan.poll_every_s * 1000),
        warmup_ms=round(plan.warmup_s * 1000),
        seq_len_min=plan.seq_len_min,
        seq_len_max=plan.seq_len_max,
        seed=seed,
        limits=msgspec.convert(limits, Limits),
        heads=plan.heads,
        head_dim=plan.head_dim,
        tokens=plan.tokens,
        dtype=plan.dtype,
        compare_every=plan.compare_every_steps,
        work_rate_rule=plan.work_rate_rule,
    )


def _device(card: Card) -> Device:
    return Device(
        card.gpu,
        card.vendor,
        index=card.index,
        model=card.model,
        arch=card.arch,
        temperature_sensor=Quantity(card.temperature_sensor) if card.temperature_sensor else None,
    )


def _card(card: Card, device: Device, utc_ms: int) -> CardSnapshot:
    results = Counter("pass" if check.within else "fail" for check in card.gradient.checks)
    newest = card.samples[-1] if card.samples else None
    return CardSnapshot(
        device=device,
        up=True,
        verdict=Verdict(card.verdict),
        findings=tuple(_findings(card)),
        poll=Poll(card.gpu, 0, _readings(newest)) if newest is not None else None,
        poll_utc_ms=_read_utc_ms(newest, utc_ms),
        n_checks=results,
        n_steps=card.throughput.n_steps,
        flops=card.throughput.flops,
        n_rotations=len(card.rotations),
        n_compared=card.integrity.n_compared,
        n_mismatches=card.integrity.n_mismatches,
        ecc=card.ecc.since_t0,
    )


def _findings(card: Card) -> Iterator[Finding]:
    for c in card.criteria:
        yield Finding(
            card.gpu,
            c.criterion,
            c.required,
            State(c.state),
            value=c.value,
            threshold=c.threshold,
            unit=c.unit,
            reason=c.reason,
            cause=Cause(c.cause) if c.cause else None,
            waived=c.waived,
        )


def _readings(sample: Sample) -> dict[Quantity, Reading]:
    """The last value of each quantity; one that this program does not know is left out."""
    readings = {}
    for name, stats in sample.stats.items():
        with suppress(ValueError):
            readings[Quantity(name)] = Reading.ok(stats.last)
    return readings


def _read_utc_ms(sample: Sample | None, utc_ms: int) -> int | None:
    """An open row is as fresh as a report can be; a closed one without a follower is as old as its end."""
    if sample is None:
        return None
    began_ms = _utc_ms(sample.start_utc)
    if not sample.closed or began_ms is None:
        return utc_ms
    return began_ms + round((sample.end_s - sample.start_s) * 1000)


def _shape(document: Document) -> Shape | None:
    newest = [card.rotations[-1] for card in document.cards if card.rotations]
    if not newest:
        return None
    rotation = max(newest, key=lambda line: (line.attempt, line.index))
    return Shape(rotation.index, rotation.seq_len, rotation.causal, rotation.seed)


def _incidents(document: Document) -> Iterator[Incident]:
    for line in document.incidents[-INCIDENTS_KEPT:]:
        utc_ms = _utc_ms(line.at_utc) or 0
        yield Incident(
            line.attempt, line.seq, round(line.at_s * 1000), utc_ms, line.kind, line.gpu, line.detail
        )


def _utc_ms(stamp: str | None) -> int | None:
    return None if stamp is None else round(datetime.fromisoformat(stamp).timestamp() * 1000)
