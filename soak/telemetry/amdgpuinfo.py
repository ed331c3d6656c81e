"""How busy the graphics pipe of an AMD card is by its registers: a cross-check of the firmware's busy figure.

Needs pyamdgpuinfo (GPL-3.0, the extra `amd`) and access to the render nodes; without either it says so and
nothing else changes.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from soak.core.records import Quantity, Reading
from soak.telemetry.pci import address_of
from soak.telemetry.plausible import judged

POLLS_PER_S = 20  # the library's default of 100 costs the sampler more than all other reads together
_NOT_YET = Reading.unsupported("the render nodes are still being opened")


class GraphicsPipe:
    """Polls the registers of every card whose PCI address the library can tell.

    Opening a render node can hang as any driver call can: it happens in a thread of its own, and until then
    there is no figure.
    """

    def __init__(
        self, module: ModuleType | Any | None, why_not: str = "pyamdgpuinfo is not installed"
    ) -> None:
        self._cards: dict[str, Any] = {}
        self._absence = _NOT_YET if module is not None else Reading.unsupported(why_not)
        if module is not None:
            threading.Thread(target=self._open, args=(module,), name="registers", daemon=True).start()

    @classmethod
    def of_this_machine(cls, root: Path) -> GraphicsPipe:
        """With the library, where it is installed and `root` is the running machine."""
        if root != Path("/"):
            return cls(None, "a recorded machine has no registers")
        if importlib.util.find_spec("pyamdgpuinfo") is None:
            return cls(None)
        try:
            return cls(importlib.import_module("pyamdgpuinfo"))
        except (ImportError, OSError) as error:
            return cls(None, f"pyamdgpuinfo does not load: {error}")

    def busy_pct(self, gpu: str) -> Reading:
        """Percent of the last second in which the graphics pipe was busy."""
        card = self._cards.get(gpu)
        if card is None:
            return self._absence
        try:
            share = card.query_utilisation()["graphics_pipe"]
        except (OSError, RuntimeError, KeyError) as error:
            return Reading.unreadable(f"register polling: {error}")
        return judged(Quantity.UTILISATION_PCT, 100.0 * share)

    def _open(self, module: Any) -> None:
        try:
            cards = [module.get_gpu(index) for index in range(module.detect_gpus())]
        except (OSError, RuntimeError) as error:  # FileNotFoundError: no /dev/dri
            self._absence = Reading.unsupported(f"no render node can be opened: {error}")
            return
        found = {}
        for card in cards:
            gpu = address_of(card.pci_slot or "")
            if gpu is None:
                continue  # inside a container the library cannot tell which card this is
            try:
                card.start_utilisation_polling(polls_per_second=POLLS_PER_S, averaging_period=POLLS_PER_S)
            except (OSError, RuntimeError):
                continue
            found[gpu] = card
        self._absence = Reading.unsupported("no render node of this card with a PCI address")
        self._cards = found
