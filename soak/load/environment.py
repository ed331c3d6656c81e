"""The environment of a worker: which card its runtime may see, and how many threads its libraries start."""

from __future__ import annotations

from collections.abc import Mapping

from soak.core.records import Device

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def worker_environment(device: Device, inherited: Mapping[str, str]) -> dict[str, str]:
    """Set before the runtime is loaded.

    NVIDIA: by UUID, so that no index order matters. AMD: by the UUID that the runtime knows (`GPU-` and the
    card's unique id) where the card has one; ROCR_, HIP_ and CUDA_VISIBLE_DEVICES would stack and renumber,
    so the others go. Without a UUID the worker sees what this process sees; it finds its card by PCI address
    in any case.
    """
    environment = dict(inherited)
    environment["PYTHONUNBUFFERED"] = "1"
    if device.vendor == "cpu":
        for name in _VISIBLE:
            environment[name] = ""
        # a lane of the load is one thread; read before PyTorch is loaded
        environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = "1"
    elif device.vendor == "nvidia":
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if device.uuid:
            environment["CUDA_VISIBLE_DEVICES"] = device.uuid
    elif device.vendor == "amd" and device.uuid:
        for name in _VISIBLE:
            environment.pop(name, None)
        environment["ROCR_VISIBLE_DEVICES"] = device.uuid
    return environment
