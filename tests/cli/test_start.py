"""What is settled before a run starts: whether the load fits the card, and whether it is the same card."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from soak.cli.start import require_fit, swapped
from soak.config import Config, parse, resolve
from soak.core.errors import ConfigError
from soak.core.records import Device
from soak.load.memory import bytes_needed

MI50 = Device("0000:33:00.0", "amd", arch="gfx906", memory_total_bytes=16 << 30)


def config(**flags: str) -> Config:
    return resolve(parse(flags, {"HOME": "/nowhere"}), (MI50,), drawn_seed=1)


def test_the_default_load_fits_an_mi50() -> None:
    require_fit(config(), (MI50,))


def test_a_load_beyond_the_memory_is_refused_with_the_largest_that_fits() -> None:
    large = config(tokens="4194304")
    with pytest.raises(ConfigError, match=r"16\.0 GiB") as refused:
        require_fit(large, (MI50,))
    found = re.search(r"--tokens (\d+) fits", str(refused.value))
    assert found is not None
    n = int(found[1])
    protocol = large.protocol()
    assert (
        bytes_needed(replace(protocol, tokens=n)) <= 16 << 30 < bytes_needed(replace(protocol, tokens=2 * n))
    )


def test_a_sequence_beyond_the_memory_names_what_to_lower() -> None:
    tiny = replace(MI50, memory_total_bytes=64 << 20)
    with pytest.raises(ConfigError, match="lower --heads, --head-dim or --seq-len"):
        require_fit(config(), (tiny,))


def test_a_card_that_does_not_say_its_memory_is_not_refused() -> None:
    require_fit(config(tokens="4194304"), (replace(MI50, memory_total_bytes=None),))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [("A", "A", []), ("A", "B", ["0000:33:00.0"]), (None, "B", []), ("A", None, [])],
)
def test_another_card_in_the_same_slot_is_another_card(
    before: str | None, now: str | None, expected: list[str]
) -> None:
    there = replace(MI50, gpu="0000:a3:00.0", uuid="C")
    ours, theirs = (replace(MI50, uuid=now), there), (there, replace(MI50, uuid=before))
    assert swapped(ours, theirs) == expected
