"""Gathers the facts: starts the children, gives each its time, ends them all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import msgspec

from soak.child import Child
from soak.core.ports import Telemetry
from soak.core.protocol import Protocol
from soak.core.records import Device, Poll, Quantity, ReadingStatus
from soak.doctor import events, look
from soak.doctor.facts import NO_CARD, Facts, Intent, Means, Pairing, Stack, Told
from soak.load.environment import worker_environment

Look = Child[look.Seen]
Workout = Child[events.Event]
Say = Callable[[str], None]

POLL_MS = 250
_SETTLE_S = 1.0  # from the start of a load until its sensors show it: NVML's window is up to a second


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for each part; a healthy machine takes a fraction of it."""

    look_s: float = 20.0
    import_s: float = 120.0  # torch from a cold disk
    ready_s: float = 300.0  # a first compilation
    rest_s: float = 1.5
    load_s: float = events.LOAD_S + 30.0


def examine(
    intent: Intent,
    quest: look.Quest,
    telemetry: Telemetry,
    patience: Patience = Patience(),
    say: Say = lambda _: None,
) -> Facts:
    """Everything the checks want to know. `telemetry` polls the intent's devices every POLL_MS already."""
    with ExitStack() as stack:
        looking: Look = Child("soak.doctor.look", (), look.Seen)
        stack.callback(looking.end)
        looking.say(msgspec.json.encode(quest))
        workouts = {} if quest.is_recorded else _start_workouts(intent)
        for child in workouts.values():
            stack.callback(child.end)
        say("looking at the machine")
        facts = _with_look(Facts(intent), quest, looking, patience.look_s)
        if quest.is_recorded:
            cannot = Pairing(fault="a recorded machine cannot be loaded")
            return replace(facts, pairings={device.gpu: cannot for device in intent.devices})
        say("waiting for torch")
        for child in workouts.values():
            child.wait(_has_libraries, patience.import_s)
        if NO_CARD in workouts:
            return replace(facts, stacks={NO_CARD: _stack_so_far(workouts[NO_CARD], patience.import_s)})
        for child in workouts.values():
            child.say(b"card")  # until here nobody but others has a card open, which the look has told
        say("compiling for the card" if quest.compiles else "")
        stacks = {gpu: _made_ready(child, patience.ready_s) for gpu, child in workouts.items()}
        pairings = {}
        for gpu, child in workouts.items():
            say(f"loading {gpu}")
            if stacks[gpu].fault:
                pairings[gpu] = Pairing(fault="the load does not start")
            else:
                pairings[gpu], stacks[gpu] = _paired(child, telemetry, patience, stacks[gpu])
        return replace(facts, stacks=stacks, pairings=pairings)


def _start_workouts(intent: Intent) -> dict[str, Workout]:
    """A child a card; without a card one that says what torch and Triton are."""
    if intent.protocol is None:
        return {NO_CARD: Child("soak.doctor.workout", ("gpu", "", "", "0", ""), events.Event)}
    return {device.gpu: _start_workout(intent.protocol, device) for device in intent.devices}


def _start_workout(protocol: Protocol, device: Device) -> Workout:
    engine = "cpu" if device.vendor == "cpu" else "gpu"
    arguments = (engine, device.gpu, device.arch or "", str(protocol.head_dim), protocol.dtype)
    environment = worker_environment(device, os.environ)
    return Child("soak.doctor.workout", arguments, events.Event, environment)


def _with_look(facts: Facts, quest: look.Quest, child: Look, deadline_s: float) -> Facts:
    n_expected = len(look.probes(quest))
    seen, complete = child.wait(lambda messages: len(messages) >= n_expected, deadline_s)
    silent = "" if complete else child.why_silent(deadline_s)
    places = {place: Told(fault=silent) for place in look.places_of(quest)}
    cards, faults = {}, {subject.gpu: silent for subject in quest.cards if silent}
    for message in seen:
        if isinstance(message, look.Place):
            places[message.name, message.gpu] = message.told
        elif message.look is None:
            faults[message.gpu] = message.fault
        else:
            cards[message.gpu] = message.look
            faults.pop(message.gpu, None)
    return replace(facts, places=places, cards=cards, card_faults=faults)


def _has_libraries(said: Sequence[events.Event]) -> bool:
    return _has(said, events.Imported, events.Stopped)


def _stack_so_far(child: Workout, deadline_s: float) -> Stack:
    said, held = child.wait(_has_libraries, 0)
    stack = _stack_of(said)
    return stack if held else replace(stack, stage="torch", fault=child.why_silent(deadline_s))


def _made_ready(child: Workout, deadline_s: float) -> Stack:
    said, held = child.wait(lambda heard: _has(heard, events.Ready, events.Stopped), deadline_s)
    stack = _stack_of(said)
    if held:
        return stack
    stage = "torch" if stack.torch is None else "card"
    return replace(stack, stage=stage, fault=child.why_silent(deadline_s))


def _stack_of(said: Iterable[events.Event]) -> Stack:
    stack = Stack()
    for event in said:
        match event:
            case events.Torch(version, cuda, hip):
                stack = replace(stack, torch=version, cuda=cuda, hip=hip)
            case events.Triton(version):
                stack = replace(stack, triton=version)
            case events.Ready(kernel, compile_s, offered):
                stack = replace(stack, kernel=kernel, compile_s=compile_s, offered=offered)
            case events.Stopped(stage, fault, offline):
                stack = replace(stack, stage=stage, fault=fault, offline=offline)
    return stack


def _paired(child: Workout, telemetry: Telemetry, patience: Patience, stack: Stack) -> tuple[Pairing, Stack]:
    """What the sensors say at rest and under this card's load."""
    telemetry.take()
    time.sleep(patience.rest_s)
    rest = _polls(telemetry)
    child.say(b"go")
    said, held = child.wait(lambda heard: _has(heard, events.Loaded, events.Stopped), patience.load_s)
    polls = _polls(telemetry)
    if not held:
        stack = replace(stack, stage="load", fault=child.why_silent(patience.load_s))
    loaded = next((event for event in said if isinstance(event, events.Loaded)), None)
    if loaded is None:
        fault = stack.fault or _stack_of(said).fault
        return Pairing(fault=fault), replace(stack, stage="load", fault=fault)
    begun_ms = loaded.begun_boot_ms + int(1000 * _SETTLE_S)
    within = [poll for poll in polls if begun_ms <= poll.boot_ms <= loaded.ended_boot_ms]
    duration_ms = loaded.ended_boot_ms - loaded.begun_boot_ms
    return Pairing(means(rest), means(within), duration_ms, loaded.n_steps), stack


def _polls(telemetry: Telemetry) -> list[Poll]:
    return [item for item in telemetry.take() if isinstance(item, Poll)]


def means(polls: Sequence[Poll]) -> Means:
    """By card and quantity, over the polls that gave a value."""
    values: dict[str, dict[Quantity, list[float]]] = {}
    for poll in polls:
        for quantity, reading in poll.readings.items():
            if reading.status is ReadingStatus.OK and reading.value is not None:
                values.setdefault(poll.gpu, {}).setdefault(quantity, []).append(reading.value)
    return {gpu: _averaged(by_quantity) for gpu, by_quantity in values.items()}


def _averaged(values: Mapping[Quantity, Sequence[float]]) -> dict[Quantity, float]:
    return {quantity: sum(read) / len(read) for quantity, read in values.items()}


def _has(said: Sequence[events.Event], *kinds: type) -> bool:
    return any(isinstance(event, kinds) for event in said)
