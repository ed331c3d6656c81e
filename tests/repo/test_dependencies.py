"""What is imported is declared: an environment that has it by chance hides what another one lacks."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OURS = {"soak", "soak_kernels", "soak_migrations"}


def imported(top: str) -> Iterator[tuple[str, str]]:
    """Names of modules that are neither Python's nor ours, with a file that imports each."""
    for path in sorted((ROOT / top).rglob("*.py")):
        ours = OURS | {sibling.stem for sibling in path.parent.glob("*.py")}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                names.append(node.module)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
                names += [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            for name in {name.split(".")[0] for name in names} - ours - sys.stdlib_module_names - {"tests"}:
                yield name, str(path.relative_to(ROOT))


def declared(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w.-]", text)[0].lower().replace("_", "-") for text in requirements}


def undeclared(tops: Iterable[str], requirements: set[str]) -> dict[str, str]:
    distributions = packages_distributions()
    return {
        name: where
        for top in tops
        for name, where in imported(top)
        if not {each.lower().replace("_", "-") for each in distributions.get(name, [name])} & requirements
    }


def test_the_product_imports_what_it_declares() -> None:
    optional = declared([*EXTRAS["gpu"], *EXTRAS["amd"], *EXTRAS["postgresql"]])
    wanted = declared(PROJECT["dependencies"]) | optional
    assert undeclared(("soak", "kernels", "migrations"), wanted) == {}


def test_tests_import_what_is_declared_for_them() -> None:
    everything = declared([*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)])
    assert undeclared(("tests", ".ci", "deploy"), everything) == {}


def test_every_declared_dependency_is_used() -> None:
    distributions = packages_distributions()
    used = {name for top in ("soak", "kernels", "migrations") for name, _ in imported(top)}
    provided = {each.lower().replace("_", "-") for name in used for each in distributions.get(name, [])}
    assert declared(PROJECT["dependencies"]) - provided == set()
