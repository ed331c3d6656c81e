"""Before the start: which required criteria cannot be met on these cards, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence

from soak.core.protocol import Protocol
from soak.core.records import Device, Quantity, ReadingStatus


def out_of_reach(protocol: Protocol, devices: Sequence[Device], waived: Sequence[str]) -> list[str]:
    """A sentence for each; none: PASS can be reached."""
    found = []
    for device in devices:
        for criterion, why in _missing(protocol, device):
            if criterion in protocol.limits.required and criterion not in waived:
                found.append(f"{device.gpu}: {why}: cannot end in PASS ({criterion})")
    if "temperature" in protocol.limits.required and protocol.warmup_ms >= protocol.duration_ms:
        found.append(
            "the warm-up is as long as the run, a shorter `--warmup` helps: cannot end in PASS (temperature)"
        )
    return found


def _missing(protocol: Protocol, device: Device) -> list[tuple[str, str]]:
    missing = []
    if device.ecc.status is ReadingStatus.UNSUPPORTED:
        missing.append(("ecc", f"no ECC on this card ({device.ecc.reason}), `--waive ecc` covers that"))
    reason = _unsupported(device, Quantity.UTILISATION_PCT)
    if reason is not None:
        missing.append(("utilisation", f"no utilisation reading ({reason})"))
    if device.temperature_sensor is None:
        missing.append(("temperature", "no temperature sensor to judge"))
    else:
        reason = _unsupported(device, device.temperature_sensor)
        if reason is not None:
            missing.append(("temperature", f"no {device.temperature_sensor} reading ({reason})"))
        elif protocol.limits.temperature_kind == "margin" and device.slowdown_c is None:
            missing.append(("temperature", "the card does not say at which temperature it slows down"))
    reason = _unsupported(device, Quantity.THERMAL_THROTTLE)
    if reason is not None and protocol.limits.temperature_kind == "margin":
        missing.append(("temperature", f"no reading of thermal throttling ({reason})"))
    return missing


def _unsupported(device: Device, quantity: Quantity) -> str | None:
    reading = device.supported.get(quantity)
    return reading.reason if reading is not None and reading.status is ReadingStatus.UNSUPPORTED else None
