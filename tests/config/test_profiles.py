"""The shipped profiles against the contract, and the checks of a person's own."""

from __future__ import annotations

import copy
import dataclasses
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from soak.config.options import OPTIONS
from soak.config.profiles import SHIPPED, criteria_rows, load_profile, parse_profile, pick_profile
from soak.core.errors import ConfigError
from soak.core.protocol import Limits
from soak.core.records import Device

MI50 = Device("0000:33:00.0", "amd", arch="gfx906")
H200 = Device("0000:45:00.0", "nvidia", arch="sm_90")
UNKNOWN = Device("0000:46:00.0", "amd")
CPU = Device("cpu", "cpu", arch="x86_64")

EVERY = {"utilisation", "temperature", "ecc", "gradient", "integrity", "faults", "coverage", "continuity"}


def shipped(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("soak") / "profiles" / f"{name}.toml").read_text())


def test_mi50_is_the_contract_s_table() -> None:
    profile = load_profile("mi50")
    assert profile.limits == Limits(
        required=frozenset(EVERY),
        utilisation_min_pct=95.0,
        utilisation_loss_max=0.02,
        temperature_kind="band",
        temperature_target_c=72.0,
        temperature_band_c=3.0,
        temperature_outer_c=6.0,
        temperature_good_min=0.98,
        temperature_judged_min=0.99,
        temperature_polls_min=0.90,
        gradient_max_abs_dq=1e-3,
        gradient_max_abs_dk=1e-3,
        gradient_max_abs_dv=5e-3,
        gradient_relative_l2=2e-3,
        integrity_made_min=0.90,
        coverage_min=0.99,
    )
    assert (profile.device, profile.dtype, profile.compare_every, profile.work_rate_rule) == (
        "gpu",
        "float16",
        10,
        True,
    )


def test_generic_differs_from_mi50_in_temperature_alone() -> None:
    mi50, generic = load_profile("mi50"), load_profile("generic")
    assert generic.limits == dataclasses.replace(
        mi50.limits, temperature_kind="margin", temperature_margin_c=5.0, throttle_max=0.001
    )
    assert generic.options == mi50.options
    assert dataclasses.replace(generic, name="mi50", description=mi50.description, limits=mi50.limits) == mi50


def test_cpu_reports_temperature_and_ecc_only() -> None:
    profile = load_profile("cpu")
    assert profile.limits.required == EVERY - {"temperature", "ecc"}
    assert (profile.device, profile.dtype, profile.compare_every, profile.work_rate_rule) == (
        "cpu",
        "float32",
        1,
        False,
    )
    assert profile.options["tokens"] == 0


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_names_every_key_it_can(name: str) -> None:
    raw = shipped(name)
    assert set(raw["protocol"]) == {option.name for option in OPTIONS.values() if option.in_profile}
    shown = dict(criteria_rows(load_profile(name).limits))
    written = {f"criteria.{table}.{key}" for table, keys in raw["criteria"].items() for key in keys}
    assert written == set(shown)


def test_every_limit_of_core_can_be_set_in_a_profile() -> None:
    raw = shipped("mi50")
    margin = shipped("generic")["criteria"]["temperature"]
    seen = set()
    for field in dataclasses.fields(Limits):
        for table, keys in (*raw["criteria"].items(), ("temperature", margin)):
            seen |= {field.name for key in keys if field.name in (key, f"{table}_{key}")}
    assert seen | {"required"} == {field.name for field in dataclasses.fields(Limits)}


@pytest.mark.parametrize(
    ("devices", "name", "reason"),
    [
        ([MI50], "mi50", "every card is gfx906"),
        ([MI50, MI50], "mi50", "every card is gfx906"),
        ([H200], "generic", "0000:45:00.0 is sm_90, not gfx906"),
        ([MI50, H200], "generic", "0000:45:00.0 is sm_90, not gfx906"),
        ([UNKNOWN], "generic", "0000:46:00.0 is of unknown architecture, not gfx906"),
        ([CPU], "cpu", "the device is the CPU"),
        ([], "generic", "no card is known yet"),
    ],
)
def test_the_profile_follows_the_cards(devices: list[Device], name: str, reason: str) -> None:
    assert pick_profile(devices) == (name, reason)


def test_a_person_s_profile_is_named_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mi50.toml"
    file.write_text((resources.files("soak") / "profiles" / "mi50.toml").read_text().replace("72.0", "68.5"))
    profile = load_profile(str(file))
    assert profile.name == str(file)
    assert profile.limits.temperature_target_c == 68.5


def test_a_limit_left_out_has_the_mi50_s_value() -> None:
    raw = shipped("mi50")
    for table in raw["criteria"].values():
        for key in set(table) - {"required", "kind"}:
            del table[key]
    del raw["protocol"]
    assert parse_profile("mine", raw).limits == load_profile("mi50").limits


NONSENSE = [
    (
        "criteria.utilisation.min_percent",
        95,
        "criteria.utilisation.min_percent; legal there: loss_max, min_pct, required.",
    ),
    (
        "criteria.humidity",
        {"required": True},
        "unknown key criteria.humidity; legal there: continuity, coverage, ecc",
    ),
    ("limits", {}, "unknown key limits; legal there: criteria, description, load, protocol."),
    ("load.dtypes", "float16", "unknown key load.dtypes; legal there: compare_every"),
    ("protocol.seed", 1, "unknown key protocol.seed; legal there: check_every"),
    ("protocol.duration", "48", "protocol.duration: '48' is not a duration"),
    ("criteria.utilisation.min_pct", 120, "criteria.utilisation.min_pct = 120: expected `float` <= 100.0."),
    ("criteria.utilisation.loss_max", -0.1, "criteria.utilisation.loss_max = -0.1: expected `float` >= 0.0."),
    (
        "criteria.utilisation.loss_max",
        "2 %",
        "criteria.utilisation.loss_max = '2 %': expected `float`, got `str`.",
    ),
    (
        "criteria.temperature.target_c",
        float("nan"),
        "criteria.temperature.target_c = nan; a limit is a finite number.",
    ),
    (
        "criteria.gradient.max_abs_dv",
        float("inf"),
        "criteria.gradient.max_abs_dv = inf; a limit is a finite number.",
    ),
    ("criteria.gradient.max_abs_dq", 0.0, "criteria.gradient.max_abs_dq = 0.0: expected `float` > 0.0."),
    (
        "criteria.temperature.outer_c",
        1.0,
        "outer_c = 1 inside band_c = 3; the outer band must be the wider one.",
    ),
    (
        "criteria.temperature.margin_c",
        5.0,
        'margin_c, which has no effect with kind = "band"; remove it, or set kind',
    ),
    (
        "criteria.temperature.kind",
        "ceiling",
        "criteria.temperature.kind = 'ceiling': invalid enum value 'ceiling'.",
    ),
    ("criteria.ecc", {}, "criteria.ecc: object missing required field `required`."),
    ("criteria.ecc.required", 1, "criteria.ecc.required = 1: expected `bool`, got `int`."),
    ("criteria.ecc", True, "criteria.ecc = True: expected `object`, got `bool`."),
    ("criteria.faults.required", False, "does not require faults, without which nothing is proven"),
    ("criteria.coverage.required", False, "does not require coverage"),
    ("criteria.continuity.required", False, "does not require continuity"),
    ("load.dtype", "bfloat16", "load.dtype = 'bfloat16': invalid enum value"),
    ("load.compare_every", 0, "load.compare_every = 0: expected `int` >= 1."),
    ("load", {}, "load: object missing required field `device`."),
]


@pytest.mark.parametrize(
    ("key", "value", "words"), NONSENSE, ids=[f"{key}={value}" for key, value, _ in NONSENSE]
)
def test_a_wrong_key_or_limit_is_named_with_what_is_legal(key: str, value: object, words: str) -> None:
    raw = copy.deepcopy(shipped("mi50"))
    *tables, last = key.split(".")
    table = raw
    for each in tables:
        table = table[each]
    table[last] = value
    with pytest.raises(ConfigError) as caught:
        parse_profile("mine.toml", raw)
    assert str(caught.value).startswith("The profile mine.toml")
    assert words in str(caught.value)


def test_a_missing_criterion_is_no_criterion_waived() -> None:
    raw = shipped("mi50")
    del raw["criteria"]["ecc"]
    with pytest.raises(ConfigError, match="criteria: object missing required field `ecc`"):
        parse_profile("mine.toml", raw)


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[criteria\n")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_profile(str(file))
