from soak_kernels.flops import backward_flops, forward_flops


def test_counts() -> None:
    full = forward_flops(8, 16, 4096, 4096, 128, causal=False)
    assert full == 4 * 8 * 16 * 4096 * 4096 * 128
    assert forward_flops(8, 16, 4096, 4096, 128, causal=True) == full / 2
    assert backward_flops(8, 16, 4096, 4096, 128, causal=False) == full * 2.5
    assert backward_flops(1, 1, 3, 5, 64, causal=True) == 2.5 * 4 * 3 * 5 * 64 / 2
