"""The repository checks itself: sizes, names, words and links, as CONTRIBUTING.md promises."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import soak

ROOT = Path(__file__).parents[2]
FILE_LINES_MOST = 400
FUNCTION_LINES_MOST = 70

PRODUCT = sorted((ROOT / "soak").rglob("*.py"))
PYTHON = sorted(
    path for top in ("soak", "kernels", "migrations", "tests", ".ci") for path in (ROOT / top).rglob("*.py")
)
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_a_file_of_the_product_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < FILE_LINES_MOST


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_a_function_of_the_product_is_short(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 < FUNCTION_LINES_MOST, f"{node.name}, line {node.lineno}"


def test_no_module_is_a_drawer() -> None:
    assert [
        relative(path) for path in PYTHON if path.stem in ("utils", "util", "helpers", "misc", "common")
    ] == []


@pytest.mark.parametrize("folder", ["kernels", "migrations"])
def test_a_folder_of_packages_is_no_package(folder: str) -> None:
    """An import package called `kernels` would overwrite another project's of that name."""
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize(
    "path", [path for path in PRODUCT if path.parts[-2] not in ("cli", "report")], ids=relative
)
def test_only_commands_print(path: Path) -> None:
    """What a person reads comes from `cli` and `report`; a child's stdout is for messages to its parent."""
    named = [
        node
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert [call.lineno for call in named if "file" not in {keyword.arg for keyword in call.keywords}] == []


def texts() -> Iterator[tuple[Path, str]]:
    """Every text of ours; recorded machines speak for themselves."""
    tops = ("soak", "kernels", "migrations", "deploy", "tests", "docs", ".ci")
    files = [path for top in tops for path in (ROOT / top).rglob("*") if path.is_file()]
    for path in [*files, *(path for path in ROOT.iterdir() if path.is_file())]:
        ours = path != Path(__file__) and "captures" not in path.parts and "__pycache__" not in path.parts
        if ours and path.suffix in ("", ".md", ".py", ".toml", ".txt", ".yaml", ".yml", ".json", ".sh"):
            yield path, path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "word",
    [
        r"(?:^|[\s\"'`(=:,])/(work|root)/",  # folders of some machine
        r"pypi\.org|pythonhosted|pytorch\.org/whl|file:///",  # hosts of registries
        r"\b(TODO|FIXME|XXX)\b(?!\((#\d+|\d{4}|v?\d+\.))",  # without an issue, date or version
        r"<{7} |>{7} ",  # a merge that was not finished
    ],
)
def test_words_that_do_not_belong_here(word: str) -> None:
    found = [f"{relative(path)}: {match[0]}" for path, text in texts() for match in re.finditer(word, text)]
    assert found == []


@pytest.mark.parametrize("path", PROSE, ids=relative)
def test_links_inside_the_repository_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_decisions_are_numbered_without_gap() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [name[:5] for name in names] == [f"{number:04}-" for number in range(1, len(names) + 1)]


def test_the_changelog_knows_this_version() -> None:
    assert f"## {soak.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
