"""What makes a run a trial of soak itself, not a soak of a card: told everywhere its result is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import ConfigError
from soak.doctor.replay import ROOT
from soak.telemetry.nvml_record import ANSWERS

_PARTS = ("sys", "proc", ANSWERS)  # what there may be of a machine; NVIDIA's cards answer through NVML alone


@dataclass(frozen=True, slots=True)
class Trial:
    """`root`: the folder that stands for `/` where sensors are read. `bit_flip`: ROTATION:STEP, or None."""

    root: Path = Path("/")
    bit_flip: str | None = None

    @property
    def is_recorded(self) -> bool:
        """The cards are those of a recorded machine."""
        return self.root != Path("/")

    @property
    def labels(self) -> Mapping[str, str]:
        """What the run's labels say of it."""
        flipped = {"injected_bit_flip": self.bit_flip} if self.bit_flip else {}
        return flipped | ({"stand_in_load": "cpu"} if self.is_recorded else {})


def trial_of(bit_flip: str | None, root: str | None) -> Trial:
    """Checks both options; ConfigError for what cannot be meant."""
    if bit_flip is not None and not re.fullmatch(r"\d{1,9}:\d{1,9}", bit_flip):
        raise ConfigError(f"--inject-bit-flip: {bit_flip!r} is not ROTATION:STEP; write it like 1:30.")
    return Trial(Path("/") if root is None else _recorded(root), bit_flip)


def _recorded(folder: str) -> Path:
    """The root of a recorded machine: this folder, or that of the capture which this folder is."""
    for root in (Path(folder).absolute(), Path(folder, ROOT).absolute()):
        if any((root / part).exists() for part in _PARTS):
            return root
    raise ConfigError(
        f"--sysfs-root: {folder!r} holds no recorded machine (none of {', '.join(_PARTS)}); name a folder "
        "that `soak doctor --capture` wrote."
    )
