"""Which kernel carries the load of a card, and what is said where it cannot; no card needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from soak.load.engine import LoadError

pytest.importorskip("triton", reason="Triton is not installed")

from soak_kernels import functional
from soak_kernels.members import MEMBERS, Card

from soak.load import kernel_gpu
from soak.load.kernel_gpu import NAMES, TritonKernel

CPU = torch.device("cpu")  # stands for a card: nothing is launched


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    functional.proven.cache_clear()
    yield
    functional.proven.cache_clear()


def kernel(name: str = "auto", dtype: str = "float16", seq_len_max: int = 4096) -> TritonKernel:
    return TritonKernel(CPU, head_dim=128, dtype=dtype, seq_len_max=seq_len_max, kernel=name)


def on(monkeypatch: pytest.MonkeyPatch, card: Card, wrong: dict[str, str]) -> None:
    """Cards of this kind; `wrong`: what a trial run of a kernel finds."""
    monkeypatch.setattr(kernel_gpu, "card_of", lambda _: card)
    monkeypatch.setattr(functional, "wrong_on", lambda name, *_: wrong.get(name))


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_the_kernel_or_a_sentence(name: str) -> None:
    if name in ("mi50", "flash_hopper"):  # this stand-in takes neither
        with pytest.raises(
            LoadError, match="it is written in Gluon, which has no interpreter; legal values: auto"
        ):
            kernel(name)
        return
    taken = kernel(name)
    assert taken.name == name
    assert taken.reason.startswith("asked for by name (")


@pytest.mark.parametrize("name", [name for name, member in MEMBERS.items() if member.no_load])
def test_what_cannot_carry_a_load_is_told_with_those_that_can(name: str) -> None:
    with pytest.raises(LoadError) as refused:
        kernel(name)
    assert str(refused.value) == (
        f"no kernel for this load: {name!r} cannot carry a load, since {MEMBERS[name].no_load}; "
        f"use auto, {', '.join(NAMES)}"
    )
    assert refused.value.kind == "compile_error"


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(
        LoadError, match="'flash_v9' cannot carry a load, since there is none of that name; use auto"
    ):
        kernel("flash_v9")


def test_a_card_of_its_own_kernel_takes_it_after_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, Card("gfx906", (3, 9), 60), {})
    taken = kernel()
    assert taken.name == "mi50"
    assert taken.reason.startswith(f"written for gfx906: {MEMBERS['mi50'].summary} (")


def test_a_trial_that_fails_falls_back_by_name_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"mi50": "its dq was wrong here (causal: relative L2 3.1e-01, limit 2e-03)"}
    on(monkeypatch, Card("gfx906", (3, 9), 60), wrong)
    taken = kernel()
    assert taken.name == "mi50_portable"
    assert f"; not mi50, since {wrong['mi50']} (" in taken.reason
    functional.proven.cache_clear()
    wrong["mi50_portable"] = "it does not run here (OutOfResources: shared memory)"
    last = kernel()
    assert last.name == "flash_v2"
    assert "not mi50, since its dq" in last.reason
    assert "; not mi50_portable, since it does not run here" in last.reason


def test_an_old_triton_and_another_type_are_reasons_too(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, Card("gfx906", (3, 6), 60), {})
    old = kernel()
    assert old.name == "mi50_portable"
    assert MEMBERS["mi50"].triton is not None
    needed = ".".join(map(str, MEMBERS["mi50"].triton))
    assert f"not mi50, since it needs Triton {needed} and this is 3.6" in old.reason
    assert kernel(dtype="bfloat16").name == "flash_v2"


def test_a_load_is_never_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launches fill the card, whatever one sequence alone would."""
    on(monkeypatch, Card("sm_90", (3, 9), 132), {})
    assert kernel(seq_len_max=65_536, dtype="float32").name == "flash_v2"
    assert kernel(seq_len_max=65_536).name == "flash_hopper"
