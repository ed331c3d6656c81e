"""Lines between parent and worker."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from soak.core.ports import Checked, Happening, Progress, Ready
from soak.core.protocol import Protocol
from soak.core.records import GradientCheck, TensorError
from soak.load import wire

CHECK = GradientCheck(
    attempt=0, gpu="cpu", index=1, due_ms=0, at_ms=0, rotation=2, seq_len=64, causal=True, seed=2**62 + 1,
    slices=((0, 1), (0, 3)), errors=(TensorError("dq", 128, 0, 1e-7, 2e-7, 0.3),),
)  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        Ready("cpu", 12, "kernel", "because", 1.5, {"torch": "2"}, {"lanes": 2}),
        Progress("cpu", 12, 3, 4, 5, None, 1.5),
        Checked("cpu", 12, CHECK),
        Happening("mismatch", 12, "cpu", "why", {"rows": [[1, 2]]}),
    ],
)
def test_what_a_worker_says_arrives_as_it_was(event: Ready | Progress | Checked | Happening) -> None:
    assert wire.decode_said(wire.encode(wire.said(event))).event == event


def test_orders_arrive_as_they_were(protocol: Protocol) -> None:
    for order in (wire.Start("0000:33:00.0", "gpu", protocol, 4), wire.Rotate(1), wire.Check(2), wire.Stop()):
        line = wire.encode(order)
        assert line.endswith(b"\n")
        assert b"\n" not in line[:-1]
        assert wire.decode_order(line) == order


def test_since_when_a_step_is_running_crosses() -> None:
    said = wire.decode_said(wire.encode(wire.said(Progress("cpu", 12, 3, 4, 5, None, 1.5), 7)))
    assert isinstance(said, wire.ProgressSaid)
    assert said.in_step_since_boot_ms == 7


def test_what_is_not_finite_crosses_and_stays_so() -> None:
    errors = (TensorError("dq", 1, 1, math.nan, math.inf, -math.inf),)
    said = wire.decode_said(wire.encode(wire.said(Checked("cpu", 12, replace(CHECK, errors=errors)))))
    assert isinstance(said, wire.CheckedSaid)
    error = said.event.check.errors[0]
    assert math.isnan(error.max_abs)
    assert (error.relative_l2, error.max_reference) == (math.inf, -math.inf)


@pytest.mark.parametrize(
    "line", [b"", b"noise\n", b'{"type":"start"}', b'{"type":"ready","event":{}}', b"[]"]
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_said(line)
