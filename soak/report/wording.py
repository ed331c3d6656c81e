"""How verdicts, values, times and foreign strings are written: the same words in every format."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone

from soak.core.protocol import Limits
from soak.core.records import Finding, State, Verdict
from soak.core.verdict import Judgement

NOT_KNOWN = "–"
LONGEST = 300  # characters of a foreign string that a page for people shows

_ONE = {"incidents": "incident", "mismatches": "mismatch", "errors since t0": "error since t0"}
STATE_WORDS = {"pass": "pass", "fail": "FAIL", "unknown": "unknown"}


def title(judgement: Judgement, *, simulated: bool) -> str:
    """The verdict with who caused it, e.g. `FAIL (hardware): ecc, faults`; a simulated one says so first."""
    words = judgement.words
    if judgement.verdict is Verdict.FAIL:
        failed = [f for card in judgement.cards for f in card.findings if f.required]
        words = fail_words(failed)
    return f"SIMULATED: {words}" if simulated else words


def fail_words(findings: Iterable[Finding]) -> str:
    """`FAIL` with the failed criteria by cause, each once, in the order in which they are given."""
    by_cause: dict[str, list[str]] = {}
    for found in findings:
        if found.state is State.FAIL:
            named = by_cause.setdefault(f" ({found.cause})" if found.cause else "", [])
            if found.criterion not in named:
                named.append(found.criterion)
    return "FAIL" + ";".join(f"{cause}: {', '.join(names)}" for cause, names in by_cause.items())


def value_text(criterion: str, value: float | None, unit: str) -> str:
    """A criterion's value with its unit, e.g. `99.31 % of the time`, `0 errors since t0`."""
    if value is None:
        return NOT_KNOWN
    if criterion in ("utilisation", "coverage", "gradient"):
        return f"{percent(value)} {unit.split(',')[0]}".rstrip()
    if criterion == "continuity":
        return clock(value)
    if criterion == "temperature":
        return f"{value:.1f} {unit}"
    return f"{number(value)} {_ONE.get(unit, unit) if value == 1 else unit}".rstrip()


def limit_text(criterion: str, threshold: float | None, limits: Limits) -> str:
    """What the value has to be, e.g. `> 98 %`, `72 ± 3 °C`."""
    if threshold is None:
        return NOT_KNOWN
    if criterion == "temperature":
        if limits.temperature_kind == "band":
            return f"{threshold:g} ± {limits.temperature_band_c:g} °C"
        return f"≤ {threshold:g} °C"
    if criterion == "utilisation":
        return f"> {100 * threshold:.4g} %"
    if criterion == "coverage":
        return f"≥ {100 * threshold:.4g} %"
    if criterion == "gradient":
        return f"< {100 * threshold:.4g} %"
    return clock(threshold) if criterion == "continuity" else number(threshold)


def signed(value: float) -> str:
    """A difference with its sign and two decimals; nothing is written as `-0.00`."""
    return f"{round(value, 2) + 0.0:+.2f}"


def percent(share: float | None) -> str:
    """A fraction of 1 in percent, cut and not rounded: what is below a limit never reads as the limit."""
    if share is None:
        return NOT_KNOWN
    if not math.isfinite(share):
        return number(share)
    if abs(share) >= 1e4:
        return f"{share:.1e} times"
    return f"{math.floor(share * 1e4 + 1e-9) / 100:g} %"


def number(value: float | None) -> str:
    """A plain figure: whole numbers with thousands separated, others with four significant digits."""
    if value is None:
        return NOT_KNOWN
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.1e}"


def decimal(value: float) -> str:
    """A reading of a sensor, to a tenth, without a trailing zero."""
    return f"{value:.1f}".removesuffix(".0") if math.isfinite(value) else number(value)


def reading(value: float) -> str:
    """A measured figure in a column: a fixed number of decimals by size, so that columns align."""
    if not math.isfinite(value):
        return number(value)
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 or value == 0 else f"{value:.3g}"


def error(value: float) -> str:
    """A numerical error: always in powers of ten, so that columns compare at a glance."""
    return f"{value:.1e}" if math.isfinite(value) else number(value)


def bytes_text(n: float | None) -> str:
    """Bytes in GiB or MiB."""
    if n is None or not math.isfinite(n):
        return NOT_KNOWN
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"


def clock(seconds: float | None) -> str:
    """Elapsed time as hours:minutes:seconds, cut to whole seconds: `48:00:00`."""
    if seconds is None:
        return NOT_KNOWN
    whole = max(int(seconds), 0)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def duration(seconds: float | None) -> str:
    """A length of time in its two largest units: `48 h`, `1 h 30 min`, `0.5 s`."""
    if seconds is None:
        return NOT_KNOWN
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def utc(ms: int | None) -> str | None:
    """A wall-clock stamp as ISO 8601 in UTC; None where there is none, or it cannot be a date."""
    if ms is None or not 0 <= ms < 253_402_300_800_000:  # the year 10000
        return None
    stamp = datetime.fromtimestamp(ms // 1000, UTC) + timedelta(milliseconds=ms % 1000)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def when(stamp: str | None, utc_offset_min: int) -> str:
    """A stamp for people: `2026-11-29 22:41:05 UTC (23:41:05 +01:00)`; the local day where it differs."""
    if stamp is None:
        return NOT_KNOWN
    at = datetime.fromisoformat(stamp)
    text = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    if not utc_offset_min:
        return text
    local = at.astimezone(timezone(timedelta(minutes=utc_offset_min)))
    day = "" if local.date() == at.date() else f"{local:%Y-%m-%d} "
    return f"{text} ({day}{local:%H:%M:%S} {offset_text(utc_offset_min)})"


def when_short(stamp: str | None) -> str:
    """A stamp in a column that says UTC: `2026-11-29 22:41:05`."""
    return NOT_KNOWN if stamp is None else f"{datetime.fromisoformat(stamp):%Y-%m-%d %H:%M:%S}"


def offset_text(utc_offset_min: int) -> str:
    """`+01:00`"""
    sign, minutes = "-" if utc_offset_min < 0 else "+", abs(utc_offset_min)
    return f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def mask(causal: bool) -> str:
    return "causal" if causal else "full"


def clean(text: str, longest: int | None = LONGEST) -> str:
    """A foreign string made fit for a page: one line, no control or direction characters, not endless.

    Characters that a terminal, a browser or an XML parser would act on are written as `\\x1b`, `\\u202e`.
    """
    if longest is not None and len(text) > longest:
        size = f" … ({len(text):,} characters)" if longest >= 100 else "…"
        text = f"{text[:longest]}{size}"
    return "".join(c if _is_harmless(c) else _escaped(c) for c in text)


def _is_harmless(c: str) -> bool:
    if c == "\u200d":  # joins emoji
        return True
    return unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _escaped(c: str) -> str:
    if c in "\n\r\t":
        return " "
    code = ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
