"""/metrics: a collector over the last immutable snapshot; no driver, no database, no lock."""

from __future__ import annotations

import logging
import math
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.registry import Collector

from soak import __version__
from soak.core.snapshot import Snapshot
from soak.exporter.families import FAMILIES, Family, Kind
from soak.exporter.moment import FRESH_MS, Moment
from soak.exporter.text import text

log = logging.getLogger(__name__)

OPENMETRICS = "application/openmetrics-text"


class Exporter(Collector):
    """Renders the page, each snapshot once a format. For one thread: that of the HTTP surface."""

    def __init__(self, families: Sequence[Family] = FAMILIES) -> None:
        self._families = families
        self._moment: Moment | None = None
        self._broken: set[str] = set()
        self._pages: dict[
            tuple[bool, bool], bytes
        ] = {}  # by (OpenMetrics, renewed), of the moment's snapshot
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family that has something to say; one that cannot be made is left out, the rest stands."""
        yield InfoMetricFamily(
            "soak_build",
            "The program that serves this page.",
            {"version": __version__, "python": platform.python_version()},
        )
        if self._moment is None:
            return
        for family in self._families:
            try:
                made = _made(family, self._moment)
            except Exception as error:  # noqa: BLE001 - the loop: one family must not cost the others
                self._complain(family, error)
                continue
            if made.samples:
                yield made

    def _complain(self, family: Family, error: Exception) -> None:
        if family.name not in self._broken:
            self._broken.add(family.name)
            log.error("metric %s cannot be made and is left out: %r", family.name, error)

    def render(self, snapshot: Snapshot | None, age_ms: int, accept: str) -> tuple[str, bytes]:
        """Content type and page: Prometheus' text, or OpenMetrics where the Accept header prefers it.

        `age_ms`: since the snapshot was made; readings of one that nobody renews are not current.
        """
        if snapshot is None or self._moment is None or self._moment.snapshot is not snapshot:
            self._pages.clear()
        self._moment = None if snapshot is None else Moment(snapshot, age_ms)
        key = prefers_openmetrics(accept), age_ms <= FRESH_MS
        if key not in self._pages:
            self._pages[key] = text(self.registry.collect(), is_openmetrics=key[0])
        return (CONTENT_TYPE_OPENMETRICS if key[0] else CONTENT_TYPE_PLAIN_0_0_4), self._pages[key]


def _made(family: Family, moment: Moment) -> Metric:
    """The family in the library's terms, without the rows that have no value."""
    rows = [([str(v) for v in values], value) for values, value in family.rows(moment) if value is not None]
    labels = family.labels
    match family.kind:
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(family.name, family.about, labels=labels)
            for values, value in rows:
                if isinstance(value, float | int) and not math.isnan(value):
                    gauge.add_metric(values, value)
            return gauge
        case Kind.COUNTER:
            counter = CounterMetricFamily(family.name.removesuffix("_total"), family.about, labels=labels)
            for values, value in rows:
                assert isinstance(value, float | int)
                counter.add_metric(values, value)
            return counter
        case Kind.STATES:
            states = StateSetMetricFamily(family.name, family.about, labels=labels)
            for values, value in rows:
                states.add_metric(values, {state: state == value for state in family.states})
            return states
        case Kind.FACTS:
            facts = InfoMetricFamily(family.name.removesuffix("_info"), family.about, labels=labels)
            for values, value in rows:
                assert isinstance(value, Mapping)
                facts.add_metric(values, {name: str(fact) for name, fact in value.items()})
            return facts


def prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header ranks OpenMetrics at least as high as Prometheus' own text."""
    weights = {OPENMETRICS: 0.0, "text/plain": 0.0}
    for offer in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in offer.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    return weights[OPENMETRICS] > 0 and weights[OPENMETRICS] >= weights["text/plain"]


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0
