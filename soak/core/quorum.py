"""Equal cards with the same kernel on the same inputs must give the same digests: compares the golden digests
of a rotation."""

from __future__ import annotations

from soak.core.ports import Happening, Progress
from soak.core.records import Device


class Quorum:
    """Holds the digests of the rotation in progress; a disagreement is told once per card and rotation."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._kind = {d.gpu: (d.vendor, d.arch, d.model, d.kernel) for d in devices}
        self._rotation = -1
        self._golden: dict[str, str] = {}
        self._told: set[str] = set()

    def take(self, progress: Progress) -> list[Happening]:
        """What the digest of one card's heartbeat says about it and its equals."""
        if progress.rotation > self._rotation:
            self._rotation, self._golden, self._told = progress.rotation, {}, set()
        if progress.rotation < self._rotation or not progress.golden:
            return []
        if self._golden.get(progress.gpu) == progress.golden:
            return []
        self._golden[progress.gpu] = progress.golden
        equals = [gpu for gpu in self._golden if self._kind[gpu] == self._kind[progress.gpu]]
        if len({self._golden[gpu] for gpu in equals}) < 2:
            return []
        tell = [gpu for gpu in equals if gpu not in self._told]
        self._told.update(tell)
        return [self._disagreement(gpu, equals, progress.boot_ms) for gpu in tell]

    def _disagreement(self, gpu: str, equals: list[str], boot_ms: int) -> Happening:
        others = ", ".join(
            f"{g} {self._golden[g][:12]}" for g in equals if self._golden[g] != self._golden[gpu]
        )
        detail = f"rotation {self._rotation}: {self._golden[gpu][:12]}, but {others or 'its equals differ'}"
        data = {"rotation": self._rotation, "golden": {g: self._golden[g] for g in equals}}
        return Happening("digest_disagreement", boot_ms, gpu, detail, data)
