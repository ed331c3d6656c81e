from soak_kernels.flops import backward_flops, compulsory_bytes, flash_v1_bytes, forward_flops
from soak_kernels.shape import Shape


def test_counts() -> None:
    full = forward_flops(8, 16, 4096, 4096, 128, causal=False)
    assert full == 4 * 8 * 16 * 4096 * 4096 * 128
    assert forward_flops(8, 16, 4096, 4096, 128, causal=True) == full / 2
    assert backward_flops(8, 16, 4096, 4096, 128, causal=False) == full * 2.5
    assert backward_flops(1, 1, 3, 5, 64, causal=True) == 2.5 * 4 * 3 * 5 * 64 / 2


def test_bytes_of_the_first_flash_attention_and_of_any() -> None:
    """10 batches, 64 heads, 1024 rows of 64 in float32, blocks of 32: 33 times as much written as needed."""
    shape = Shape(10, 64, 64, 1024, 1024, 64)
    read, written = flash_v1_bytes(shape, 32, 4)
    assert (round(read / 1e9, 2), round(written / 1e9, 2)) == (11.24, 5.54)
    assert tuple(round(n / 1e9, 3) for n in compulsory_bytes(shape, 4)) == (0.503, 0.168)
    assert flash_v1_bytes(Shape(1, 4, 1, 7, 65, 32), 64, 2) == (
        2 * 65 * 32 * 2 + 2 * 28 * (32 * 2 + 32 * 4 + 8),
        2 * 28 * (32 * 4 + 8),
    )
