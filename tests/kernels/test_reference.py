"""The reference against autograd in float64: two derivations that share nothing but the definition."""

from __future__ import annotations

import pytest
import torch
from soak_kernels.reference import reference, reference_slice, relative_l2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize(("seq_len", "chunk_rows"), [(1, 256), (37, 256), (37, 8), (64, 16)])
def test_equals_autograd(causal: bool, scale: float | None, seq_len: int, chunk_rows: int) -> None:
    generator = torch.Generator().manual_seed(seq_len)
    q, k, v, do = (torch.randn(seq_len, 16, generator=generator, dtype=torch.float64) for _ in range(4))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    s = q @ k.T * (16**-0.5 if scale is None else scale)
    if causal:
        s = s.masked_fill(torch.ones(seq_len, seq_len).triu(1).bool(), -torch.inf)
    o = torch.softmax(s, 1) @ v
    gradients = torch.autograd.grad(o, (q, k, v), do)
    result = reference_slice(q, k, v, do, causal=causal, scale=scale, chunk_rows=chunk_rows)
    assert relative_l2(result.o, o.detach()) < 1e-13
    assert relative_l2(result.lse, torch.logsumexp(s, 1).detach()) < 1e-13
    for name, gradient in zip(("dq", "dk", "dv"), gradients, strict=True):
        torch.testing.assert_close(getattr(result, name), gradient, rtol=1e-11, atol=1e-13)


def test_batched_is_slice_by_slice() -> None:
    q, k, v, do = (torch.randn(2, 3, 9, 8) for _ in range(4))
    batched = reference(q, k, v, do, causal=True)
    single = reference_slice(q[1, 2], k[1, 2], v[1, 2], do[1, 2], causal=True)
    for name in ("o", "lse", "dq", "dk", "dv"):
        assert torch.equal(getattr(batched, name)[1, 2], getattr(single, name))


def test_scores_beyond_any_float16() -> None:
    x = torch.full((40, 128), 65504.0, dtype=torch.float16)
    result = reference_slice(x, x, x, torch.ones_like(x), causal=False)
    assert relative_l2(result.o, x.double()) < 1e-15
    assert torch.allclose(result.dv, torch.ones(40, 128, dtype=torch.float64))


def test_nan_comes_through() -> None:
    truth = torch.ones(3, dtype=torch.float64)
    assert relative_l2(torch.tensor([1.0, float("nan"), 1.0]), truth) != relative_l2(truth, truth)
    assert torch.isnan(torch.tensor(relative_l2(torch.tensor([1.0, float("nan"), 1.0]), truth)))


def test_other_shapes_are_refused() -> None:
    x = torch.ones(4, 8)
    with pytest.raises(ValueError, match=r"q, k, v, do have shapes \[4, 8\], \[3, 8\]"):
        reference_slice(x, x[:3], x, x, causal=False)
