"""Attention under Triton's interpreter against float64, with everything around and inside every output
poisoned."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from soak_kernels.members import MEMBERS
from soak_kernels.tuning import PASSES, choose

FORWARD_LIMIT = 1e-3  # relative L2; float16 and float32
GRADIENT_LIMIT = 2e-3
FLOAT32_LIMIT = 5e-6
PRODUCTS = ("gfx906", "sm_90")
OTHER = "any-other"
LINEAGE = tuple(name for name, member in MEMBERS.items() if member.arch is None)
INTERPRETED = (*LINEAGE, "mi50_portable")  # Gluon has no interpreter: tests/kernels/gfx906 executes its code

# (Sq, Sk), (heads, key heads), head_dim, causal, dtype: each pair of properties occurs, per kernel
CASES = (
    ((1, 1), (1, 1), 64, False, "float16"),
    ((17, 17), (2, 2), 32, True, "float16"),
    ((65, 65), (1, 1), 128, True, "float16"),
    ((130, 17), (4, 2), 64, True, "float16"),  # 113 rows see no key
    ((17, 130), (2, 1), 48, False, "float32"),
)
SEQ_LENS = (1, 17, 63, 64, 65, 127, 128, 129, 130, 200)
MORE_SHAPES = (*((n, n) for n in SEQ_LENS), (1, 200), (200, 1), (63, 128), (128, 63))
SLOW_CASES = [
    *(
        (seq, (1, 1), dim, causal, "float16")
        for seq, dim, causal in product(MORE_SHAPES, (64, 128), (False, True))
    ),
    ((127, 129), (3, 1), 96, True, "float16"),
    ((64, 65), (6, 3), 80, False, "float16"),
    ((65, 64), (2, 2), 256, True, "float16"),
    ((33, 70), (2, 1), 208, True, "float32"),
    ((70, 33), (2, 1), 256, True, "float32"),
]


def check(answer: dict[str, Any], dtype: str = "float16") -> None:
    assert answer["intact"], "read or written outside a tensor"
    check_errors(answer["errors"], dtype)
    assert answer["empty_rows_are_zero"]


def check_errors(errors: dict[str, float], dtype: str = "float16") -> None:
    for name, error in errors.items():
        half = FORWARD_LIMIT if name in ("o", "lse") else GRADIENT_LIMIT
        assert error < (half if dtype == "float16" else FLOAT32_LIMIT), name


def takes(kernel: str, head_dim: int, dtype: str) -> bool:
    return head_dim in MEMBERS[kernel].head_dims and dtype in MEMBERS[kernel].dtypes


def compare(interpreter: Any, kernel: str, arch: str, case: Any, **more: Any) -> dict[str, Any]:
    seq, heads, head_dim, causal, dtype = case
    answer: dict[str, Any] = interpreter.call(
        "compare_with_reference", kernel=kernel, arch=arch, seq=seq, heads=heads, head_dim=head_dim,
        causal=causal, dtype=dtype, **more,
    )  # fmt: skip
    check(answer, dtype)
    assert answer["n_empty_rows"] == (heads[0] * max(0, seq[0] - seq[1]) if causal else 0)
    return answer


@pytest.mark.parametrize(
    ("kernel", "case"),
    [(kernel, case) for kernel in INTERPRETED for case in CASES if takes(kernel, case[2], case[4])],
)
def test_every_kernel_equals_float64(interpreter: Any, kernel: str, case: Any) -> None:
    compare(interpreter, kernel, OTHER, case)


OF_FLASH_V2 = ("flash_v2_kt", "flash_v2_vt")  # one constant apart from it: the last cases will do


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        (kernel, case)
        for kernel in INTERPRETED
        for case in (SLOW_CASES[-13:] if kernel in OF_FLASH_V2 else SLOW_CASES)
        if takes(kernel, case[2], case[4])
    ],
)
def test_every_kernel_equals_float64_everywhere(interpreter: Any, kernel: str, case: Any) -> None:
    compare(interpreter, kernel, OTHER, case)


FEW = ((64, 65), (64, 130), (128, 127))
ALL = tuple(product((64, 128), SEQ_LENS))


@pytest.mark.parametrize(
    ("arch", "head_dim", "seq_len"),
    [
        pytest.param(arch, *case, marks=[] if case in FEW else [pytest.mark.slow])
        for arch in PRODUCTS
        for case in ALL
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_the_product_equals_float64(
    interpreter: Any, arch: str, head_dim: int, causal: bool, seq_len: int
) -> None:
    answer = compare(interpreter, "flash_v2", arch, ((seq_len, seq_len), (1, 1), head_dim, causal, "float16"))
    ran = {each["kernel"]: each for each in answer["ran"]}
    for pass_ in PASSES:
        tile, reason = choose(arch, head_dim=head_dim, seq_len=seq_len, causal=causal, pass_=pass_)
        assert not reason.startswith("fallback:")
        launched = ran[f"_{pass_}_kernel"]
        names = ("BLOCK_M", "BLOCK_N", "CHUNK_QK", "CHUNK_PV", "TRANSPOSED", "CAUSAL")
        expected = (tile.block_m, tile.block_n, tile.chunk_qk, tile.chunk_pv, tile.transposed, causal)
        assert tuple(launched[name] for name in names) == expected


def test_a_chunked_tile_takes_padded_heads_and_shared_keys(interpreter: Any) -> None:
    answer = compare(interpreter, "flash_v2", "gfx906", ((65, 70), (2, 1), 96, True, "float16"))
    forward = next(each for each in answer["ran"] if each["kernel"] == "_forward_kernel")
    assert (forward["DIM"], forward["HEAD_DIM"], forward["CHUNK_QK"]) == (96, 128, 16)


@pytest.mark.parametrize(
    ("kernel", "ran"),
    [
        ("naive", ["_into", "_softmax", "_out_of"]),
        ("flash_v1", ["_forward"]),
        ("flash_v2", ["_forward"]),
        ("flash_v2_kt", ["_transpose", "_forward"]),
        ("flash_v2_vt", ["_transpose", "_forward"]),
        ("flash_splitkv", ["_part", "_reduce"]),
        ("mi50_portable", ["_transpose", "_forward"]),
    ],
)
def test_each_kernel_is_what_its_name_says_and_repeats_itself(
    interpreter: Any, kernel: str, ran: list[str]
) -> None:
    case = ((40, 40), (1, 1), 64, True, "float16")
    answer = compare(interpreter, kernel, "sm_90", case, repeat=True)
    assert [each["kernel"] for each in answer["ran"]][: len(ran)] == [f"{name}_kernel" for name in ran]
    assert answer["identical"], "the same inputs gave other bits"
    if kernel in ("flash_v2_kt", "flash_v2_vt"):
        forward = answer["ran"][1]
        assert (forward["TRANSPOSED"], forward["V_TRANSPOSED"]) == (kernel[-2:] == "kt", kernel[-2:] == "vt")


@pytest.mark.parametrize(
    ("kernel", "arch", "causal"),
    [
        ("flash_v2", "sm_90", True),
        ("flash_v2", "gfx906", False),
        ("naive", OTHER, True),
        ("flash_v1", OTHER, True),
        ("flash_splitkv", OTHER, False),
    ],
)
def test_a_head_of_nan_stays_in_its_head(interpreter: Any, kernel: str, arch: str, causal: bool) -> None:
    answer = interpreter.call("neighbour_is_nan", kernel=kernel, arch=arch, seq_len=65, causal=causal)
    assert answer == {"head_0_same": True, "head_1_nan": True}


KINDS = ("largest", "tiny", "mixed", "one-huge-row", "all-equal", "rounding")


def is_worth_trying(kernel: str, kind: str) -> bool:
    """flash_v2_kt and _vt compute what flash_v2 does. mi50_portable has no float32, and relies on its card's
    products, which add up along the head dimension one after the other in every pass; NumPy's do not."""
    if kernel in OF_FLASH_V2:
        return kind == "largest"
    return kernel != "mi50_portable" or kind not in ("rounding", "mixed")


@pytest.mark.parametrize(
    ("kernel", "kind"), [case for case in product(INTERPRETED, KINDS) if is_worth_trying(*case)]
)
def test_extreme_scores(interpreter: Any, kernel: str, kind: str) -> None:
    answer = interpreter.call(
        "extreme", kernel=kernel, kind=kind, arch="sm_90", seq_len=33, causal=kind == "mixed"
    )
    assert answer["finite"]
    assert answer["lse"] < FORWARD_LIMIT
    # tiny: the inputs are subnormal, 2^-24 lies between neighbours, so nothing relative is left.
    if kind != "tiny":
        assert answer["o"] < FORWARD_LIMIT
    # mixed: a recomputed score of 1e11 rounds elsewhere than the forward's (here: NumPy's order of sums).
    if kind not in ("tiny", "mixed"):
        assert answer["dv"] < GRADIENT_LIMIT


@pytest.mark.parametrize(
    ("kernel", "causal", "scale", "heads", "layout"),
    [
        ("auto", False, None, (2, 2), "contiguous"),
        ("auto", True, 0.3, (4, 2), "rows first"),
        ("flash_v1", True, None, (4, 2), "unaligned"),
        ("naive", False, 0.3, (2, 2), "expanded"),
        ("flash_v2", True, None, (2, 2), "minus"),
        ("flash_splitkv", True, None, (2, 2), "sliced"),
        ("mi50_portable", True, 0.3, (4, 2), "rows first"),
    ],
)
def test_public_function_has_gradients(
    interpreter: Any, kernel: str, causal: bool, scale: float | None, heads: tuple[int, int], layout: str
) -> None:
    answer = interpreter.call(
        "autograd", kernel=kernel, causal=causal, scale=scale, heads=heads, layout=layout
    )
    check_errors(answer["errors"], "float16" if kernel == "mi50_portable" else "float32")
    assert answer["lse_has_no_gradient"]
    expected = {"contiguous": [], "expanded": ["k", "v"]}.get(layout, ["q", "k", "v"])
    assert answer["copied"] == expected


def test_choices_come_with_their_reason(interpreter: Any) -> None:
    answer = interpreter.call("choices")
    assert answer["auto"] == f"flash_v2: on cpu: {MEMBERS['flash_v2'].summary}"
    assert answer["by name"] == "naive: asked for by name"
    assert answer["preflight"] is None
    cannot = answer["preflight of one that cannot"]
    assert cannot.startswith("it does not run here (ValueError: head_dim is 100; legal values: multiples")


def test_bad_input_is_refused_by_name(interpreter: Any) -> None:
    shape = "legal: [batch, heads, rows, head_dim], each at least 1"
    scale = "legal values: a number from 2^-100 to 2^100"
    able = ", ".join(INTERPRETED)
    assert interpreter.call("refusals") == {
        "head_dim": "q has head_dim 100; legal values: multiples of 16 from 32 to 256",
        "integers": "q has dtype int32; legal values: float16, bfloat16, float32",
        "mixed dtype": "k has dtype float32; legal: float16, as q has",
        "empty batch": f"q has shape [0, 4, 17, 64]; {shape}",
        "no rows": f"q has shape [1, 4, 0, 64]; {shape}",
        "no keys": f"k has shape [1, 4, 0, 64]; {shape}",
        "k and v differ": "v has shape [1, 4, 16, 64]; legal: [1, 4, 17, 64]",
        "batches differ": "k has shape [2, 4, 17, 64]; legal: [1, 4, 17, 64]",
        "three dimensions": f"q has shape [4, 17, 64]; {shape}",
        "device": "v is on meta; legal: cpu, where q is",
        "heads not divisible": "k has 3 heads; legal: a divisor of q's 4",
        "fewer heads": "k has 2 heads and q 4; legal: as many, or a divisor with enable_gqa=True",
        "all on meta": "q is on meta; legal: a GPU, or the CPU with TRITON_INTERPRET=1 set before triton",
        "no tensor": "q is of type list; legal: torch.Tensor",
        "nothing": "v is of type NoneType; legal: torch.Tensor",
        "sparse": "k has the layout torch.sparse_coo; legal: torch.strided (k.to_dense())",
        "scale": f"scale is nan; {scale}",
        "negative scale": f"scale is -1.0; {scale}",
        "scale that float32 does not hold": f"scale is 1e-46; {scale}",
        "scale beyond float32": f"scale is 1e+39; {scale}",
        "scale in words": f"scale is '1'; {scale}",
        "scale that is true": f"scale is True; {scale}",
        "scale without a value": f"scale is tensor(..., device='meta', size=()); {scale}",
        "is_causal in words": "is_causal is 'False'; legal values: True, False",
        "is_causal of many": "is_causal is tensor([ True, False]); legal values: True, False",
        "enable_gqa": "enable_gqa is 1; legal values: True, False",
        "return_lse": "return_lse is None; legal values: True, False",
        "bfloat16 without a card": "q has dtype bfloat16 on the CPU, where Triton's interpreter has none; "
        "legal: float16, float32",
        "kernel that is no name": f"kernel is ['flash_v2']; legal values: auto, {', '.join(MEMBERS)}",
        "unknown kernel": f"kernel is 'flash_v9'; legal values: auto, {', '.join(MEMBERS)}",
        "kernel of another head_dim": "kernel is 'mi50_portable', but it has head_dim 64, 128 and the "
        f"tensors have 32; legal values: auto, {', '.join(LINEAGE)}",
        "kernel without interpreter": "kernel is 'mi50', but it is written in Gluon, which has no "
        f"interpreter; legal values: auto, {able}",
    }


@pytest.mark.parametrize("kernel", INTERPRETED)
def test_a_kernel_takes_only_what_is_laid_out_for_it(interpreter: Any, kernel: str) -> None:
    expected = {
        "strides": "v has strides [2176, 0, 64, 1]; legal: contiguous (v.contiguous() makes it so)",
        "address": "k begins at an address that is no multiple of 16; legal: k.clone()",
        "lse": "lse has dtype float32; legal: float64",
        "out is an input": "o overlaps q in memory; legal: a tensor of its own",
        "out overlaps": "o overlaps v in memory; legal: a tensor of its own",
        "overlapping strides of out": "o has strides [2176, 0, 64, 1]; "
        "legal: contiguous (o.contiguous() makes it so)",
        "do": "do has dtype bfloat16; legal: float16",
        "rows of lse": "lse has shape [1, 1, 17]; legal: [1, 2, 17]",
        "one gradient for two": "dv overlaps dk in memory; legal: a tensor of its own",
        "workspace": "workspace is of another shape, type or device; legal: allocate(q, k, config)",
        "launched": "0",
    }
    assert interpreter.call("refusals_of_members", kernel=kernel) == expected
