"""What goes into the database comes out equal: every type of record, every value that its types allow."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from enum import StrEnum
from typing import Any, Union

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soak.core.records import (
    Attempt,
    Finding,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Quantity,
    Rotation,
    RunInfo,
    RunRecord,
    Slot,
    State,
    Stats,
)
from soak.store import codec
from soak.store.db import Database, sqlite_url
from soak.store.mapping import MAPS
from soak.store.writer import Writer

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Every value of a field's type, so that a new field is covered without being named here."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is Mapping:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return records_of(typing.cast(type, hint))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    return {
        int: INT64,
        float: st.floats(),
        str: WORDS,
        bool: st.booleans(),
        type(None): st.none(),
        Any: JSON,
    }[hint]


def records_of(record: type, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(record)
    values = {f.name: values_of(hints[f.name]) for f in dataclasses.fields(record)}
    return st.builds(record, **values | fixed)


RUNS = st.builds(
    lambda run, devices: dataclasses.replace(run, devices=tuple(devices)),
    records_of(RunInfo),
    st.lists(values_of(typing.get_type_hints(RunInfo)["devices"].__args__[0]), unique_by=lambda d: d.gpu),
)
RECORDS = {
    "attempts": records_of(Attempt),
    "slots": records_of(Slot),
    "rotations": records_of(Rotation, flops=st.integers()),
    "gradient_checks": records_of(GradientCheck),
    "integrity_checks": records_of(IntegrityCheck),
    "incidents": records_of(Incident),
    "findings": records_of(Finding),
}


def plain(value: Any) -> Any:
    """The value in a form in which NaN equals NaN and types count."""
    if dataclasses.is_dataclass(value):
        return type(value), [plain(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0  # -0.0 is 0.0
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value), [plain(item) for item in value]
    return value


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    url = sqlite_url(tmp_path_factory.mktemp("round-trip") / "soak.db")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_server") + "postgres"
    with ExitStack() as stack:
        database = stack.enter_context(Database.open(url, durable=False))
        database.upgrade()
        yield database


COUNT = itertools.count()


def stored(database: Database, info: RunInfo, *records: Any, clock: Any) -> RunRecord:
    writer = Writer(database, info.run_id, clock, threaded=False)
    writer.write(info, *records)
    assert writer.flush(0)
    assert writer.take() == []
    return database.load(info.run_id)


@given(info=RUNS)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_comes_back_equal(kept: Database, clock: Any, info: RunInfo) -> None:
    info = dataclasses.replace(info, run_id=f"{next(COUNT)} {info.run_id}")
    assert plain(stored(kept, info, clock=clock).info) == plain(info)


@pytest.mark.parametrize("table", RECORDS)
@given(data=st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_record_comes_back_equal(
    kept: Database, clock: Any, make: Any, table: str, data: st.DataObject
) -> None:
    record = data.draw(RECORDS[table])
    run = stored(kept, make.info(f"run {next(COUNT)}"), record, clock=clock)
    assert plain(getattr(run, table)) == plain((record,))


@given(JSON)
def test_json_text_is_strict_and_comes_back_equal(value: Any) -> None:
    def forbid(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = codec.to_json(value)
    json.loads(text, parse_constant=forbid)
    assert plain(codec.from_json(text)) == plain(value)


def test_what_is_no_json_value_is_refused() -> None:
    with pytest.raises(TypeError, match="object is no JSON value"):
        codec.to_json({"a": object()})


def test_a_mapping_of_any_kind_is_kept() -> None:
    view = types.MappingProxyType({"a": (1, 2)})
    assert codec.from_json(codec.to_json(view)) == {"a": [1, 2]}


@pytest.mark.parametrize("rows", MAPS, ids=lambda rows: rows.table.name)
def test_every_field_has_its_column(rows: Any) -> None:
    columns = set(rows.table.c.keys())
    kept_in = {column for _, column, _ in rows.fields()}
    assert kept_in <= columns
    left = {"run_id", "position", "dropped"} if rows.derived is None else None
    assert left is None or columns - kept_in <= left


def test_text_that_no_database_holds_is_kept_as_an_escape(kept: Database, clock: Any, make: Any) -> None:
    incident = make.incident(detail="a\0b \udcff", gpu="\udcff")
    (read,) = stored(kept, make.info(f"run {next(COUNT)}"), incident, clock=clock).incidents
    assert (read.detail, read.gpu) == ("a\\x00b \\udcff", "\\udcff")


def test_queries_find_a_nan_beyond_the_limit(kept: Database, clock: Any, make: Any) -> None:
    """`max_abs < limit` is false of NaN, in SQL as in Python."""
    info = make.info(f"run {next(COUNT)}")
    rows = [make.gradient(0), make.gradient(1, worst=math.nan), make.gradient(2, worst=math.inf)]
    stored(kept, info, *rows, clock=clock)
    query = "SELECT number FROM gradient_check WHERE run_id = '{}' AND NOT dq_max_abs < 1e-3 ORDER BY number"
    with kept.read() as connection:
        found = connection.exec_driver_sql(query.format(info.run_id)).scalars().all()
    assert found == [1, 2]


def test_what_people_ask_for_has_its_own_column(kept: Database, clock: Any, make: Any) -> None:
    info = make.info(f"run {next(COUNT)}")
    figures = {
        Quantity.UTILISATION_PCT: Stats(9, 90.0, 98.5, 100.0, 95.0, 100.0, 99.0),
        Quantity.TEMPERATURE_EDGE_C: Stats(9, 70.0, 72.5, 74.0, 70.0, 74.0, 73.0),
        Quantity.POWER_W: Stats(9, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan),
        Quantity.MEMORY_FREE_BYTES: Stats(9, 1.0, 2.0, 3.0, 1.0, 3.0, 34342961152.0),
    }
    stored(kept, info, make.slot(stats=figures, ecc={"corrected": 2}), clock=clock)
    query = (
        "SELECT utilisation_min_pct, utilisation_mean_pct, utilisation_p05_pct, temperature_edge_mean_c,"
        " temperature_core_mean_c, power_mean_w, memory_free_bytes, ecc_corrected, ecc_uncorrected"
        f" FROM sample WHERE run_id = '{info.run_id}'"
    )
    with kept.read() as connection:
        row = connection.exec_driver_sql(query).one()
    assert tuple(row) == (90.0, 98.5, 95.0, 72.5, None, None, 34342961152, 2, None)


def test_states_are_states_again(kept: Database, clock: Any, make: Any) -> None:
    (found,) = stored(kept, make.info(f"run {next(COUNT)}"), make.finding(), clock=clock).findings
    assert found.state is State.PASS
