"""Whole runs in virtual time, on cards that do not exist, through the code of a real run."""

from soak.simulate.drive import Disk, Stage, simulate, simulated_devices
from soak.simulate.scenarios import SCENARIOS, Fault, Scenario
from soak.simulate.world import SimulatedLoad, SimulatedTelemetry, VirtualClock, World, simulated_device

__all__ = [
    "SCENARIOS",
    "Disk",
    "Fault",
    "Scenario",
    "SimulatedLoad",
    "SimulatedTelemetry",
    "Stage",
    "VirtualClock",
    "World",
    "simulate",
    "simulated_device",
    "simulated_devices",
]
