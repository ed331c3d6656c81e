"""Lines about the cards themselves: who they are, what can be read of them, how they are set."""

from __future__ import annotations

from collections.abc import Iterator

from soak.core.reach import out_of_reach
from soak.core.records import Device, Quantity, ReadingStatus
from soak.core.slots import required_quantities
from soak.doctor.facts import CardLook, Facts
from soak.doctor.line import Level, Line
from soak.load.memory import bytes_needed
from soak.telemetry.ras import ASLEEP

_GIB = 1 << 30
_FAKE = "carries Radeon VII firmware"


def card(facts: Facts) -> Iterator[Line]:
    """Which cards a run would take, or why none."""
    if facts.intent.refusal:
        yield Line("card", Level.FAIL, facts.intent.refusal)
    for device in facts.intent.devices:
        fake = next((note for note in device.notes if note.startswith(_FAKE)), "")
        known = [device.model, device.arch, device.vbios and f"VBIOS {device.vbios}", device.uuid, fake]
        says = ", ".join(fact for fact in known if fact)
        remedy = "Nothing to do for the run; do not trust what the seller says." if fake else ""
        yield Line("card", Level.WARN if fake else Level.OK, says, remedy, device.gpu)
        if device.gpu in facts.card_faults:
            fault = f"its settings could not be looked at: {facts.card_faults[device.gpu]}"
            yield Line("card", Level.WARN, fault, gpu=device.gpu)


def driver(facts: Facts) -> Iterator[Line]:
    for version in dict.fromkeys(d.driver for d in facts.intent.devices if d.vendor != "cpu"):
        if version is None:
            yield Line("driver", Level.WARN, "the driver does not say its version")
        else:
            yield Line("driver", Level.OK, version)


def reach(facts: Facts) -> Iterator[Line]:
    """Criteria that cannot be met here, whatever happens; a run is refused for them. ECC has its own line."""
    intent = facts.intent
    if intent.protocol is None:
        return
    level = Level.WARN if intent.accept_inconclusive else Level.FAIL
    missing = out_of_reach(intent.protocol, intent.devices, (*intent.waived, "ecc"))
    for sentence in missing:
        yield Line("reach", level, sentence)
    if not missing:
        yield Line("reach", Level.OK, f"profile {intent.profile}: its criteria can be judged here")


def sensors(facts: Facts) -> Iterator[Line]:
    """What has to be read every second, and was not when it was first asked for."""
    protocol = facts.intent.protocol
    for device in facts.intent.devices if protocol is not None else ():
        assert protocol is not None
        wanted = sorted(required_quantities(protocol, device))
        readings = {q: device.supported[q] for q in wanted if q in device.supported}
        failed = [f"{q}: {r.reason}" for q, r in readings.items() if r.status is ReadingStatus.UNREADABLE]
        if failed:
            yield Line("sensors", Level.FAIL, "; ".join(failed), gpu=device.gpu)
        elif readings:
            told = [f"{_name(q)} {r.value:g}" for q, r in readings.items() if r.value is not None]
            yield Line("sensors", Level.OK, ", ".join(told), gpu=device.gpu)


def _name(quantity: Quantity) -> str:
    return quantity.rpartition("_")[0].replace("_", " ")


def ecc(facts: Facts) -> Iterator[Line]:
    protocol = facts.intent.protocol
    required = protocol is not None and "ecc" in protocol.limits.required
    for device in facts.intent.devices:
        match device.ecc.status:
            case ReadingStatus.OK:
                yield Line("ecc", Level.OK, _baseline(device), gpu=device.gpu)
            case ReadingStatus.UNREADABLE if device.ecc.reason.startswith(ASLEEP):
                says = f"the error counters cannot be read now ({device.ecc.reason})"
                remedy = "A run wakes it; `on` in its power/control keeps it awake."
                yield Line("ecc", Level.WARN, says, remedy, device.gpu)
            case ReadingStatus.UNREADABLE:
                level = Level.FAIL if required else Level.WARN
                says = f"the error counters cannot be read ({device.ecc.reason})"
                remedy = "Reboot, or reset the card: without a baseline a run is refused."
                yield Line("ecc", level, says, remedy, device.gpu)
            case ReadingStatus.UNSUPPORTED:
                waived = not required or "ecc" in facts.intent.waived
                may_start = facts.intent.accept_inconclusive
                level = Level.OK if waived else Level.WARN if may_start else Level.FAIL
                suffix = " (waived)" if required and waived else "" if required else " (not required)"
                yield Line("ecc", level, f"none: {device.ecc.reason}{suffix}", gpu=device.gpu)


def memory_history(facts: Facts) -> Iterator[Line]:
    for gpu, look in facts.cards.items():
        for trouble in look.troubles:
            yield Line("memory history", Level.WARN, trouble, gpu=gpu)


def free_memory(facts: Facts) -> Iterator[Line]:
    """Whether the load fits what is free; the worker refuses it otherwise."""
    protocol = facts.intent.protocol
    for device in facts.intent.devices:
        free = device.supported.get(Quantity.MEMORY_FREE_BYTES)
        if protocol is None or device.vendor == "cpu" or free is None or free.value is None:
            continue
        needed = bytes_needed(protocol)
        says = f"the load takes {needed / _GIB:.1f} GiB, {free.value / _GIB:.1f} GiB are free"
        yield Line("memory", Level.FAIL if needed > free.value else Level.OK, says, gpu=device.gpu)


def power_cap(facts: Facts) -> Iterator[Line]:
    for gpu, look in facts.cards.items():
        cap, default = look.power_cap_w, look.power_default_w
        if cap is None:
            continue
        if default is None or cap >= default:
            yield Line("power cap", Level.OK, f"{cap:.0f} W", gpu=gpu)
        else:
            says = f"{cap:.0f} W, the card's default is {default:.0f} W"
            yield Line("power cap", Level.WARN, says, gpu=gpu)


def temperature_limits(facts: Facts) -> Iterator[Line]:
    """Where the card slows itself down, against the band in which it is to be held."""
    protocol = facts.intent.protocol
    for device in facts.intent.devices:
        if protocol is None or "temperature" not in protocol.limits.required:
            continue
        limits = protocol.limits
        highest_c = limits.temperature_target_c + limits.temperature_outer_c
        sensor = str(device.temperature_sensor or "").removeprefix("temperature_").removesuffix("_c")
        now = device.supported.get(device.temperature_sensor) if device.temperature_sensor else None
        now_says = "" if now is None or now.value is None else f", now {now.value:.0f}"
        if device.slowdown_c is None:
            yield Line(
                "temperature", Level.WARN, f"{sensor}: its limit is not told{now_says}", gpu=device.gpu
            )
        elif limits.temperature_kind == "band" and device.slowdown_c <= highest_c:
            says = (
                f"{sensor}: slows down at {device.slowdown_c:.0f} °C, within the band up to {highest_c:.0f}"
            )
            yield Line("temperature", Level.WARN, says, gpu=device.gpu)
        else:
            says = f"{sensor}: slows down at {device.slowdown_c:.0f} °C{now_says}"
            yield Line("temperature", Level.OK, says, gpu=device.gpu)


def settings(facts: Facts) -> Iterator[Line]:
    for gpu, look in facts.cards.items():
        for restraint in look.restraints:
            yield Line("settings", Level.WARN, restraint, gpu=gpu)


def persistence(facts: Facts) -> Iterator[Line]:
    for gpu, look in facts.cards.items():
        if look.persistence is False:
            says = "persistence mode is off: the driver forgets its counters when its last client ends"
            yield Line("persistence", Level.WARN, says, gpu=gpu)


def users(facts: Facts) -> Iterator[Line]:
    for gpu, look in facts.cards.items():
        if look.holders:
            yield Line("users", Level.WARN, f"in use by {_names(look)}", gpu=gpu)
        elif gpu != "cpu":
            yield Line("users", Level.OK, "no other process that can be seen from here uses it", gpu=gpu)


def _names(look: CardLook) -> str:
    named = [
        f"{holder.name or 'a process'} ({holder.pid})"
        + (f" with {holder.memory_bytes / _GIB:.1f} GiB" if holder.memory_bytes else "")
        for holder in look.holders[:5]
    ]
    more = len(look.holders) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _baseline(device: Device) -> str:
    counted = {key: reading.value for key, reading in device.ecc_baseline.items() if reading.value}
    if not counted:
        return f"{len(device.ecc_baseline)} counters, all 0"
    return "before the run: " + ", ".join(f"{key} {value:.0f}" for key, value in counted.items())
