"""What the load takes of a card's memory. Plain arithmetic, so that a shape that cannot fit is refused before
anything starts."""

from __future__ import annotations

from soak.core.protocol import Protocol

INPUT_SETS = 2  # the rotation at work and the one prepared
GOLDEN_SETS = 2  # of the rotation at work and of the one whose last steps are still in the queue
COMPARE_SLOTS = 2  # steps that are compared keep their outputs until the host has seen the result
OUTPUT_SETS = GOLDEN_SETS + COMPARE_SLOTS + 1  # and one that the other steps write over and over
_ROWS_MULTIPLE = 128  # the kernels' scratch is padded to no more than this
_DIGEST_ROWS = 128
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def batch_of(protocol: Protocol, seq_len: int) -> int:
    """Sequences a launch: as many whole ones as make `tokens`, at least one."""
    return max(1, protocol.tokens // seq_len)


def n_elements(protocol: Protocol) -> int:
    """Of the largest q, k, v, o, ... of any rotation."""
    tokens = max(batch_of(protocol, s) * s for s in _lengths(protocol))
    return tokens * protocol.heads * protocol.head_dim


def n_rows(protocol: Protocol) -> int:
    """Of the largest log-sum-exp of any rotation."""
    return n_elements(protocol) // protocol.head_dim


def n_digests(protocol: Protocol) -> int:
    """Blocks of rows of the largest output of any rotation."""
    return max(batch_of(protocol, s) * protocol.heads * -(-s // _DIGEST_ROWS) for s in _lengths(protocol))


def bytes_needed(protocol: Protocol) -> int:
    """At most, the runtime's own memory aside."""
    size = _BYTES[protocol.dtype]
    elements = n_elements(protocol)
    padded = max(batch_of(protocol, s) * -(-s // _ROWS_MULTIPLE) * _ROWS_MULTIPLE for s in _lengths(protocol))
    padded_rows = padded * protocol.heads
    tensors = (INPUT_SETS * 4 + OUTPUT_SETS * 4) * elements * size
    log_sums = OUTPUT_SETS * n_rows(protocol) * 8
    drawing = elements * 4
    workspaces = INPUT_SETS * padded_rows * (4 * protocol.head_dim * size + 3 * 4)
    digests = (GOLDEN_SETS + COMPARE_SLOTS) * 5 * n_digests(protocol) * 8
    return tensors + log_sums + drawing + workspaces + digests


def _lengths(protocol: Protocol) -> range:
    return range(protocol.seq_len_min, protocol.seq_len_max + 1)
