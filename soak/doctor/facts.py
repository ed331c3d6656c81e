"""What was found out, before it is judged. What is not known is None or absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from soak.core.protocol import Protocol
from soak.core.records import Device, Quantity


@dataclass(frozen=True, slots=True)
class Told:
    """A probe's answer in words: what it found, and what is wrong with it ("": nothing)."""

    says: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has the card open."""

    pid: int
    name: str  # "" where it cannot be seen from here
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CardLook:
    """A card's settings, from its driver and the PCI bus."""

    power_cap_w: float | None = None
    power_default_w: float | None = None
    link_width: int | None = None  # lanes of the narrowest link up to the root
    link_width_max: int | None = None
    link_speed_gts: float | None = None  # of the slowest link, now: an idle card may slow it down
    link_speed_max_gts: float | None = None
    numa_node: int | None = None
    persistence: bool | None = None  # NVIDIA: the driver stays loaded without a client
    holders: tuple[Holder, ...] = ()
    troubles: tuple[str, ...] = ()  # of the memory's history: pages pending, a remapping failed
    restraints: tuple[str, ...] = ()  # settings that keep the card from working as it can


@dataclass(frozen=True, slots=True)
class Stack:
    """What torch and Triton are, as a process of the load sees them."""

    torch: str | None = None
    cuda: str | None = None
    hip: str | None = None
    triton: str | None = None
    offered: tuple[str, ...] | None = None  # PCI addresses of the runtime's cards; None: not asked
    kernel: str | None = None  # what was compiled and ran
    compile_s: float | None = None
    stage: str = ""  # where it stopped: torch, triton, card, compile, load; "": it did not
    fault: str = ""
    offline: str = ""  # the card is out of reach: what compiling for it without it gave


NO_CARD = ""

Means = Mapping[str, Mapping[Quantity, float]]  # by card: means of a few polls


@dataclass(frozen=True, slots=True)
class Pairing:
    """One card was loaded; what every card's sensors said before and meanwhile."""

    rest: Means = field(default_factory=dict)
    loaded: Means = field(default_factory=dict)
    load_ms: int = 0
    n_steps: int = 0
    fault: str = ""  # why it was not done


@dataclass(frozen=True, slots=True)
class Intent:
    """The run that would be started. `refusal`: why it would find no cards to take."""

    devices: tuple[Device, ...] = ()
    refusal: str = ""
    protocol: Protocol | None = None  # None: no card, so no profile
    profile: str = ""
    waived: tuple[str, ...] = ()
    accept_inconclusive: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks look at. `cards`, `stacks`, `pairings` are by card; without a card there is
    one stack, of NO_CARD."""

    intent: Intent
    places: Mapping[tuple[str, str | None], Told] = field(default_factory=dict)  # by probe and card
    cards: Mapping[str, CardLook] = field(default_factory=dict)
    card_faults: Mapping[str, str] = field(default_factory=dict)  # why a card could not be looked at
    stacks: Mapping[str, Stack] = field(default_factory=dict)
    pairings: Mapping[str, Pairing] = field(default_factory=dict)
