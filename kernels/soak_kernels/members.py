"""The lineage: which kernels there are, what each can do, and which one is used for what, with the reason.

Pure up to `operation`, which imports the kernel that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

from soak_kernels.shape import COORDINATES, DTYPES, HEAD_DIMS, Shape, head_dims_in_words

SPLIT_KEYS = 1024  # rows of fewer keys are not worth a second kernel that adds up the parts


@dataclass(frozen=True)
class Member:
    """One kernel. backward: whose; arch: None for every card; triton: the first version that has what it
    needs, in Gluon, which has no interpreter; square: whether it needs as many keys as rows; n_rows_below:
    how many rows, padded, all heads together may have; no_load: why `soak run` cannot use it, None where it
    can."""

    name: str
    summary: str
    backward: str
    head_dims: tuple[int, ...] = HEAD_DIMS
    dtypes: tuple[str, ...] = DTYPES
    arch: str | None = None
    triton: tuple[int, int] | None = None
    square: bool = False
    n_rows_below: int | None = None
    no_load: str | None = None


_OF_GFX906: dict[str, Any] = {"arch": "gfx906", "head_dims": (64, 128), "dtypes": ("float16",)}
_V2 = "flash_v2"
_TURNED = "beforehand; the transpose is part of it"

_ALL = (
    Member(
        "naive", "scores and probabilities written to memory, as the formulas say", "its own",
        no_load="its scratch grows with the square of seq_len",
    ),
    Member("flash_v1", "K and V outer, Q inner: O goes through memory for each block of keys", _V2),
    Member(_V2, "Q outer, K and V inner: O stays on chip, one division at the end", _V2),
    Member("flash_v2_kt", f"flash_v2 with K transposed {_TURNED}", _V2),
    Member("flash_v2_vt", f"flash_v2 with V transposed {_TURNED}", _V2),
    Member(
        "flash_splitkv", "flash_v2 with the keys of a row dealt to several programs, in fixed order",
        _V2, no_load="its scratch grows with the number of parts, which the card decides",
    ),
    Member(
        "flash_hopper", "Gluon for sm_90: one warpgroup loads, two compute; programs take tiles in turn",
        "its own", (64, 128), ("float16", "bfloat16"), arch="sm_90", triton=(3, 6), square=True,
        n_rows_below=COORDINATES,
    ),
    Member(
        "mi50", "Gluon for gfx906: LDS layouts of its own choosing", "its own", triton=(3, 9), **_OF_GFX906
    ),
    Member(
        "mi50_portable", "plain Triton for gfx906: right operands transposed beforehand", "its own",
        **_OF_GFX906,
    ),
)  # fmt: skip
MEMBERS: Mapping[str, Member] = {member.name: member for member in _ALL}

# What `auto` would rather have than flash_v2, card by card; each proves itself on the card first.
PREFERRED: Mapping[str, tuple[str, ...]] = {
    "gfx906": ("mi50", "mi50_portable"),
    "sm_90": ("flash_hopper",),
}


@dataclass(frozen=True)
class Choice:
    """kernel: the one to use; reason: why; refused: those that were preferred but cannot be, each with its
    reason; unproven: whether it should be tried on the card before it is trusted."""

    kernel: str
    reason: str
    refused: tuple[tuple[str, str], ...] = ()
    unproven: bool = False

    @property
    def why(self) -> str:
        """The reason and the refusals in one line: `…; not mi50, since …`."""
        return self.reason + "".join(f"; not {name}, since {why}" for name, why in self.refused)

    def __str__(self) -> str:
        return f"{self.kernel}: {self.why}"


@dataclass(frozen=True)
class Card:
    """What a choice wants to know of the machine. n_processors: multiprocessors or compute units, None:
    unknown."""

    arch: str
    triton: tuple[int, int]
    n_processors: int | None = None


def refusal(name: str, card: Card, shape: Shape, dtype: str) -> str | None:
    """Why this kernel cannot run such tensors on this card; None where it can."""
    member = MEMBERS[name]
    if member.arch is not None and card.arch not in (member.arch, "cpu"):
        return f"it is written for {member.arch} and this is {card.arch}"
    if member.triton is not None and card.arch == "cpu":
        return "it is written in Gluon, which has no interpreter"
    if member.triton is not None and card.triton < member.triton:
        needed, found = (".".join(map(str, version)) for version in (member.triton, card.triton))
        return f"it needs Triton {needed} and this is {found}"
    if dtype not in member.dtypes:
        return f"it has {', '.join(member.dtypes)} and the tensors are {dtype}"
    if shape.head_dim not in member.head_dims:
        return f"it has head_dim {head_dims_in_words(member.head_dims)} and the tensors have {shape.head_dim}"
    if member.square and shape.seq_q != shape.seq_k:
        return f"it needs as many keys as rows and the tensors have {shape.seq_k} and {shape.seq_q}"
    n_rows = shape.n_heads * shape.pad_q
    if member.n_rows_below is not None and n_rows >= member.n_rows_below:
        return f"it takes fewer than {member.n_rows_below} padded rows in all and the tensors have {n_rows}"
    return None


def choose(
    card: Card,
    shape: Shape,
    *,
    dtype: str,
    kernel: str = "auto",
    failed: tuple[tuple[str, str], ...] = (),
) -> Choice:
    """The kernel for such tensors on this card.

    kernel: "auto", or a name of `MEMBERS`, which then is used or refused; failed: kernels that were tried on
    this card and found wrong, with the reason. Raises ValueError for an unknown name and for one that cannot
    run these tensors."""
    if kernel != "auto":
        if kernel not in MEMBERS:
            raise ValueError(f"kernel is {kernel!r}; legal values: auto, {', '.join(MEMBERS)}")
        why_not = refusal(kernel, card, shape, dtype)
        if why_not is not None:
            able = [name for name in MEMBERS if refusal(name, card, shape, dtype) is None]
            raise ValueError(f"kernel is {kernel!r}, but {why_not}; legal values: auto, {', '.join(able)}")
        return Choice(kernel, "asked for by name")
    found_wrong = dict(failed)
    refused: list[tuple[str, str]] = []
    for name in PREFERRED.get(card.arch, ()):
        why_not = refusal(name, card, shape, dtype) or found_wrong.get(name)
        if why_not is None:
            reason = f"written for {card.arch}: {MEMBERS[name].summary}"
            return Choice(name, reason, tuple(refused), unproven=True)
        refused.append((name, why_not))
    n_parts = n_splits(shape, card.n_processors)
    if n_parts > 1:
        few = f"{_n_programs(shape)} programs are too few for {card.n_processors} processors"
        return Choice("flash_splitkv", f"{few}, so keys go in {n_parts} parts", tuple(refused))
    return Choice("flash_v2", f"on {card.arch}: {MEMBERS['flash_v2'].summary}", tuple(refused))


_ROWS = 128  # of a program, about; the choice must not depend on the tile
_SPLITS_MOST = 16
_SPLIT_KEYS_LEAST = 256  # keys of a part


def _n_programs(shape: Shape) -> int:
    return -(-shape.seq_q // _ROWS) * shape.n_heads


def n_splits(shape: Shape, n_processors: int | None) -> int:
    """Into how many parts `auto` splits the keys: 1 unless fewer than half of the processors would have work
    and a row has at least SPLIT_KEYS keys; else so many that each has some."""
    programs = _n_programs(shape)
    if n_processors is None or 2 * programs > n_processors or shape.seq_k < SPLIT_KEYS:
        return 1
    return max(1, min(n_processors // programs, shape.seq_k // _SPLIT_KEYS_LEAST, _SPLITS_MOST))


@dataclass(frozen=True)
class Operation:
    """A member's functions, the same for all.

    plan(arch, shape, causal=, dtype=, n_processors=): a configuration, hashable, with `reasons`: what the
    machine code depends on. allocate(q, k, config): scratch for forward and backward, reusable for ever.
    forward(q, k, v, causal=, scale=, out=, workspace=): o, lse. backward(q, k, v, o, lse, do, causal=,
    scale=, out=, workspace=): dq, dk, dv. With `out` and `workspace` nothing is allocated."""

    name: str
    plan: Callable[..., Any]
    allocate: Callable[..., Any]
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclass(frozen=True)
class FixedTiles:
    """The configuration of a kernel that has one tile a pass and head dimension."""

    tiles: tuple[Any, ...]
    reasons: tuple[str, ...]


@cache
def operation(name: str) -> Operation:
    """Imports a member; its name must be one of `MEMBERS`. Raises ImportError where this Triton is too
    old."""
    module = import_module(f"soak_kernels.{name}")
    if MEMBERS[name].arch != "gfx906":
        return Operation(name, module.plan, module.allocate, module.forward, module.backward)
    return Operation(
        name,
        partial(_fixed_plan, module.TILES, MEMBERS[name].summary),
        partial(_fixed_allocate, module.allocate_workspace),
        partial(_fixed_forward, getattr(module, f"{name}_forward"), takes_workspace=name == "mi50_portable"),
        getattr(module, f"{name}_backward"),
    )


def _fixed_plan(tiles: Any, reason: str, arch: str, shape: Shape, **_: Any) -> FixedTiles:
    del arch
    found = tuple(tiles[pass_, shape.head_dim] for pass_ in ("forward", "dq", "dkv"))
    return FixedTiles(found, (reason,))


def _fixed_allocate(allocate: Callable[..., Any], q: Any, k: Any, config: FixedTiles) -> Any:
    del config
    return allocate(q, k)


def _fixed_forward(
    forward: Callable[..., Any], *tensors: Any, workspace: Any = None, takes_workspace: bool, **rest: Any
) -> Any:
    """mi50's forward has no scratch, so it takes none."""
    return forward(*tensors, **rest, **({"workspace": workspace} if takes_workspace else {}))
