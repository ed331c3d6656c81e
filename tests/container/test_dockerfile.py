"""What the Dockerfile says agrees with the program and with its page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import soak
from soak.config import OPTIONS

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/container.md").read_text(encoding="utf-8")
SETTINGS = dict(re.findall(r"\b(SOAK_[A-Z_]+)=(\S+)", DOCKERFILE))


def test_what_it_sets_are_options_with_legal_values() -> None:
    variables = {option.variable: option for option in OPTIONS.values()}
    assert SETTINGS.keys() == {"SOAK_DATA_DIR", "SOAK_LISTEN", "SOAK_LINGER"}
    for variable, value in SETTINGS.items():
        variables[variable].read(value)


def test_everything_that_is_written_goes_to_the_volume() -> None:
    folders = re.findall(
        r"\b(?:HOME|XDG_CACHE_HOME|TRITON_CACHE_DIR|CUDA_CACHE_PATH|SOAK_DATA_DIR)=(\S+)", DOCKERFILE
    )
    assert len(folders) == 5
    assert {Path(folder).parts[:2] for folder in folders} == {("/", "data")}
    assert "\nVOLUME /data\n" in DOCKERFILE
    assert "\nWORKDIR /data\n" in DOCKERFILE


def test_the_port_is_the_one_that_it_listens_on() -> None:
    assert f"\nEXPOSE {SETTINGS['SOAK_LISTEN'].rpartition(':')[2]}\n" in DOCKERFILE


def test_the_version_is_the_program_s() -> None:
    assert f"\nARG VERSION={soak.__version__}\n" in DOCKERFILE


def test_triton_is_new_enough_for_the_default_base() -> None:
    (version,) = re.findall(r"^ARG TRITON=triton==(\d+)\.(\d+)", DOCKERFILE, re.MULTILINE)
    assert tuple(map(int, version)) >= (3, 8)


def test_what_is_built_is_what_the_wheel_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = {
        source
        for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert {package.split("/")[0] for package in packages} <= copied
    let_in = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    assert {source.split("/")[0] for source in copied} <= let_in
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.parametrize("stated", ["10001", "/data", "9868", "gpu-soak", "5m"])
def test_the_page_states_what_others_build_on(stated: str) -> None:
    assert stated in DOCKERFILE
    assert stated in PAGE


def test_the_page_names_the_default_base_and_every_argument() -> None:
    (base,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert base in PAGE
    for argument in re.findall(r"^ARG ([A-Z_]+)", DOCKERFILE, re.MULTILINE):
        assert f"`{argument}`" in PAGE
