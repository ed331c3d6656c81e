"""Prints the exact versions, installed here, of everything that soak and its development need.

torch, triton and what only they need are left out: a machine's own GPU stack decides about those.
"""

from __future__ import annotations

from importlib.metadata import requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LEFT_OUT = {"torch", "triton"}


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """The names that `name` with these extras pulls in here, itself included."""
    if name in LEFT_OUT or (name, extras) in seen:
        return set()
    seen.add((name, extras))
    names = {name}
    for text in requires(name) or ():
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in extras or {""}]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            names |= needed(canonicalize_name(requirement.name), frozenset(requirement.extras), seen)
    return names


print("# Versions tested together; made by `make constraints`, torch and triton are left to the machine.")
for name in sorted(needed("gpu-soak", frozenset({"dev", "postgresql"}), set()) - {"gpu-soak"}):
    print(f"{name}=={version(name)}")
