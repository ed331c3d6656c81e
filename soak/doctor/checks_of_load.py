"""Lines about what works the cards: torch, the runtime, Triton, and a load of three seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from soak.core.records import Device, Quantity
from soak.doctor.facts import NO_CARD, Facts, Pairing, Stack
from soak.doctor.line import Level, Line

BUSY_BEFORE_PCT = 75.0  # a card as busy as that cannot show a rise
RISE_PCT = 20.0
RISE_W = 5.0

_U, _P = Quantity.UTILISATION_PCT, Quantity.POWER_W


def torch(facts: Facts) -> Iterator[Line]:
    for stack in dict.fromkeys(_unlike(facts.stacks)):
        if stack.torch is None:
            yield Line("torch", Level.FAIL, stack.fault)
        else:
            build = f", CUDA {stack.cuda}" if stack.cuda else f", ROCm {stack.hip}" if stack.hip else ""
            yield Line("torch", Level.OK, stack.torch + build)


def runtime(facts: Facts) -> Iterator[Line]:
    """Whether the runtime offers the card that telemetry watches."""
    for device in _gpus(facts):
        stack = facts.stacks[device.gpu]
        if stack.stage == "card":
            yield Line("runtime", Level.FAIL, stack.fault, gpu=device.gpu)
        elif stack.offered is not None:
            name = f"ROCm {stack.hip}" if stack.hip else f"CUDA {stack.cuda}"
            yield Line("runtime", Level.OK, f"{name} offers it", gpu=device.gpu)


def triton(facts: Facts) -> Iterator[Line]:
    """Whether Triton compiles for the card, by having compiled and run the load's own kernels on it."""
    if NO_CARD in facts.stacks:
        stack = facts.stacks[NO_CARD]
        if stack.stage == "triton":
            yield Line("triton", Level.FAIL, stack.fault)
        elif stack.triton is not None:
            yield Line("triton", Level.OK, f"Triton {stack.triton}")
    for device in _gpus(facts):
        stack = facts.stacks[device.gpu]
        version = f"Triton {stack.triton}"
        if stack.stage == "triton":
            yield Line("triton", Level.FAIL, stack.fault, gpu=device.gpu)
        elif stack.stage == "compile":
            yield Line("triton", Level.FAIL, f"{version}: {stack.fault}", gpu=device.gpu)
        elif stack.stage == "card":
            level = Level.OK if stack.offline.startswith("Triton compiles") else Level.FAIL
            yield Line("triton", level, f"{version}: {stack.offline}", gpu=device.gpu)
        elif stack.kernel is not None:
            says = f"{version}: {stack.kernel} in {stack.compile_s:.1f} s"
            yield Line("triton", Level.OK, says, gpu=device.gpu)


def pairing(facts: Facts) -> Iterator[Line]:
    """Whether the load of a card shows in the sensors of that card, and of no other."""
    if not facts.intent.devices:
        yield Line("pairing", Level.SKIP, "there is no card to load")
    for device in facts.intent.devices:
        paired = facts.pairings.get(device.gpu, Pairing(fault="it was not done"))
        stage = facts.stacks.get(device.gpu, Stack()).stage
        if paired.fault and stage != "load":
            yield Line("pairing", Level.SKIP, paired.fault, gpu=device.gpu)  # another line says why
        elif paired.fault:
            remedy = "Look at the kernel log; the run would fail in the same way."
            yield Line("pairing", Level.FAIL, f"the load ended: {paired.fault}", remedy, device.gpu)
        else:
            yield _rise(device, paired)


def pcie_link(facts: Facts) -> Iterator[Line]:
    """Width and speed, of the weakest link up to the root, under load where the card was loaded."""
    for gpu, look in facts.cards.items():
        loaded = facts.pairings.get(gpu, Pairing()).loaded.get(gpu, {})
        width = loaded.get(Quantity.PCIE_WIDTH, look.link_width)
        speed_loaded = loaded.get(Quantity.PCIE_SPEED_GTS)
        speed = speed_loaded if speed_loaded is not None else look.link_speed_gts
        if width is None and speed is None:
            continue
        narrow = width is not None and look.link_width_max is not None and width < look.link_width_max
        slow = speed_loaded is not None and _below(speed_loaded, look.link_speed_max_gts)
        says = f"{_lanes(width)} at {_speed(speed)} GT/s{'' if speed_loaded is not None else ' at rest'}"
        if narrow or slow:
            says += f", it could be {_lanes(look.link_width_max)} at {_speed(look.link_speed_max_gts)} GT/s"
        if look.numa_node is not None:
            says += f", NUMA node {look.numa_node}"
        yield Line("pcie link", Level.WARN if narrow or slow else Level.OK, says, gpu=gpu)


def _rise(device: Device, paired: Pairing) -> Line:
    """One card's line; the cards that rose instead are named."""
    gpu = device.gpu
    before, after = paired.rest.get(gpu, {}), paired.loaded.get(gpu, {})
    says = "; ".join(
        f"{name} {_value(before, quantity)} → {_value(after, quantity)} {unit}"
        for name, quantity, unit in (("utilisation", _U, "%"), ("power", _P, "W"))
        if quantity in before or quantity in after
    )
    if _U not in before or _U not in after:
        why = device.supported[_U].reason if _U in device.supported else ""
        return Line("pairing", Level.WARN, f"no utilisation was read{why and f' ({why})'}", gpu=gpu)
    if before[_U] > BUSY_BEFORE_PCT:
        remedy = "End what uses it and try again; a card that is busy with nothing is a fault of its driver."
        return Line("pairing", Level.WARN, f"busy before the load, no rise can be seen: {says}", remedy, gpu)
    if after[_U] - before[_U] < RISE_PCT:
        others = [other for other in paired.loaded if other != gpu and _rose(paired, other)]
        instead = f"; {', '.join(others)} rose instead" if others else ""
        return Line("pairing", Level.FAIL, f"the load does not show: {says}{instead}", gpu=gpu)
    if _P in before and _P in after and after[_P] - before[_P] < RISE_W:
        return Line("pairing", Level.WARN, f"power did not rise with the load: {says}", gpu=gpu)
    return Line("pairing", Level.OK, says, gpu=gpu)


def _rose(paired: Pairing, gpu: str) -> bool:
    before, after = paired.rest.get(gpu, {}), paired.loaded.get(gpu, {})
    return _U in before and _U in after and after[_U] - before[_U] >= RISE_PCT


def _gpus(facts: Facts) -> Iterator[Device]:
    return (d for d in facts.intent.devices if d.vendor != "cpu" and d.gpu in facts.stacks)


def _unlike(stacks: Mapping[str, Stack]) -> Iterator[Stack]:
    """Of equal torches one line is enough."""
    for stack in stacks.values():
        yield Stack(
            torch=stack.torch, cuda=stack.cuda, hip=stack.hip, fault="" if stack.torch else stack.fault
        )


def _value(means: Mapping[Quantity, float], quantity: Quantity) -> str:
    return f"{means[quantity]:.0f}" if quantity in means else "?"


def _below(value: float, limit: float | None) -> bool:
    return limit is not None and value < 0.95 * limit


def _lanes(width: float | None) -> str:
    return "x?" if width is None else f"x{width:.0f}"


def _speed(speed: float | None) -> str:
    return "?" if speed is None else f"{speed:g}"
