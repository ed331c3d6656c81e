"""What an attention is about, in counts; pure, so that a choice of kernel or tile needs no tensor."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_DIMS = tuple(range(32, 257, 16))
DTYPES = ("float16", "bfloat16", "float32")
ROW_MULTIPLE = (
    128  # padded row counts are a multiple of it: every block of every tile (powers of two) divides it
)
COORDINATES = 2**31  # rows of a tensor descriptor are counted in 32 bits
SLICE_ELEMENTS_MOST = 2**31 - 2**17  # offsets inside one head are 32 bits wide; those between heads are 64


@dataclass(frozen=True)
class Shape:
    """q [batch, heads, seq_q, head_dim], k and v [batch, kv_heads, seq_k, head_dim]."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def n_heads(self) -> int:
        return self.batch * self.heads

    @property
    def n_kv_heads(self) -> int:
        return self.batch * self.kv_heads

    @property
    def is_square(self) -> bool:
        """As many keys as rows and a key head for each head: what the load runs."""
        return self.seq_q == self.seq_k and self.heads == self.kv_heads

    @property
    def padded_dim(self) -> int:
        return padded(self.head_dim)

    @property
    def pad_q(self) -> int:
        return -(-self.seq_q // ROW_MULTIPLE) * ROW_MULTIPLE

    @property
    def pad_k(self) -> int:
        return -(-self.seq_k // ROW_MULTIPLE) * ROW_MULTIPLE


def padded(head_dim: int) -> int:
    """The power of two that holds head_dim: tiles have such widths, and load zeros beyond it."""
    return 1 << (head_dim - 1).bit_length()


def head_dims_in_words(head_dims: tuple[int, ...]) -> str:
    """ "64, 128", or for a long row of them "multiples of 16 from 32 to 256"."""
    if len(head_dims) <= 4:
        return ", ".join(map(str, head_dims))
    return f"multiples of {head_dims[1] - head_dims[0]} from {head_dims[0]} to {head_dims[-1]}"
