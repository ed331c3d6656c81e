"""The sample rows as CSV: a row per attempt, card and sampling interval, always the same columns.

An empty field is what is not known. A text that a spreadsheet would take for a formula gets an apostrophe in
front; numbers are left alone.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import fields
from io import StringIO

from soak.core.records import ECC_KINDS, Quantity, Stats
from soak.report.card_document import Card, Sample
from soak.report.document import Document
from soak.report.wording import clean

STATS = tuple(field.name for field in fields(Stats))
COLUMNS = (
    "run_id", "simulated", "gpu", "attempt", "slot", "start_s", "end_s", "start_utc", "closed", "n_polls",
    "observed_s", "in_spec_s", "suspect_s", "bad_s", "throttled_s",
    *(f"ecc_{kind}" for kind in ECC_KINDS),
    "ecc_doubt",
    *(f"{quantity}_{stat}" for quantity in Quantity for stat in STATS),
    "missing",
)  # fmt: skip
LONGEST_TEXT = 2000  # a spreadsheet's cell and Python's own reader both have an end
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "|", "%")


def as_csv(document: Document) -> str:
    """The sample rows of every card, in the order of cards, attempts and slots."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for card in document.cards:
        for sample in card.samples:
            writer.writerow(_fields(document, card, sample))
    return out.getvalue()


def _fields(document: Document, card: Card, sample: Sample) -> Iterator[str]:
    run = document.run
    yield from (_text(run.run_id), "SIMULATED" if run.simulated else "", _text(card.gpu))
    yield from (str(sample.attempt), str(sample.index), _number(sample.start_s), _number(sample.end_s))
    yield from (sample.start_utc or "", "1" if sample.closed else "0", str(sample.n_polls))
    times = (sample.observed_s, sample.in_spec_s, sample.suspect_s, sample.bad_s, sample.throttled_s)
    yield from map(_number, times)
    counts = sample.ecc or {}
    yield from (str(counts[kind]) if kind in counts else "" for kind in ECC_KINDS)
    yield _text(sample.ecc_doubt)
    for quantity in Quantity:
        stats = sample.stats.get(str(quantity))
        yield from (_number(getattr(stats, stat)) if stats else "" for stat in STATS)
    yield _text("; ".join(f"{name} {reason}" for name, reason in sample.missing.items()))


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return str(int(value)) if value == int(value) else repr(value)


def _text(text: str) -> str:
    cleaned = clean(text, LONGEST_TEXT)
    return f"'{cleaned}" if cleaned.lstrip().startswith(FORMULA_STARTS) else cleaned
