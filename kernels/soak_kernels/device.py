"""What a torch device is, in the words that tuning and compilation use."""

from __future__ import annotations

import torch


def architecture(device: torch.device) -> str:
    """ "gfx906", "sm_90", ... of a GPU; "cpu" of the CPU (Triton's interpreter). Initialises the device's
    runtime."""
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).split(":")[0]  # "gfx906:sramecc+:xnack-"
    return f"sm_{properties.major}{properties.minor}"
