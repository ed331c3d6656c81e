"""`soak verify`: the short rounds, minutes and not days."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from soak.cli.arguments import Explained
from soak.cli.options import given, options
from soak.cli.say import is_terminal, say, say_error
from soak.cli.start import backends_for, find_devices
from soak.clock import SystemClock
from soak.config import COMMON, Request, parse, resolve
from soak.config.options import KERNELS
from soak.config.readers import Refused, duration
from soak.core.errors import CannotRun, ConfigError
from soak.core.protocol import Protocol
from soak.core.records import Device
from soak.load.environment import worker_environment
from soak.store.lease import holder_of_card
from soak.telemetry.watch import Sampler
from soak.verify.messages import PLANTS, ROUNDS, About, Began, Order, Result
from soak.verify.session import Patience, Verified, exit_code, stopped, verify
from soak.verify.show import FORMATS, as_counts, as_heading, as_json, as_junit, as_line

_HEAD_DIM_SMALL = 64
_SEED_BELOW = 1 << 31


@click.command("verify")
@click.argument(
    "round_", metavar="[ROUND]", required=False, cls=Explained, help=f"Only this one: {', '.join(ROUNDS)}."
)
@options(("device", "expect_gpus"))
@click.option("--kernel", default="auto", metavar="NAME", help="Which kernel; auto takes the load's.")
@options(("profile", "seed"))
@click.option("--case", "case", default="", metavar="TEXT", help="Only cases whose name has this in it.")
@click.option("--format", "fmt", default="text", metavar="FORMAT", help=f"{', '.join(FORMATS)}.")
@click.option("--deadline", default="5m", metavar="TEXT", help="A case that takes longer has failed.")
@click.option(
    "--plant", metavar="FAULT", help=f"Put a fault into the kernel, to see it found: {', '.join(PLANTS)}."
)
@options(COMMON)
def command(
    round_: str | None, kernel: str, case: str, fmt: str, deadline: str, plant: str | None, **flags: Any
) -> int:
    """Verify a kernel on each device by six short rounds, minutes and not days.

    Exit codes: 0 all passed, 1 a check failed or its kernel hung, 2 bad usage, 3 stopped before every check
    was made and none had failed, 4 could not run.
    """
    rounds = _checked(round_, fmt, plant)
    patience = Patience(case_s=_deadline_s(deadline))
    request = parse(given(flags), os.environ, stores=False)
    devices = _devices(request)
    config = resolve(request, devices, drawn_seed=secrets.randbelow(_SEED_BELOW))
    wanted = _Wanted(config.protocol(), kernel, rounds, case, plant)
    orders = [order for device in devices for order in _orders(device, wanted)]
    return _verify(orders, {device.gpu: device for device in devices}, patience, fmt)


@dataclass(frozen=True, slots=True)
class _Wanted:
    protocol: Protocol
    kernel: str
    rounds: tuple[str, ...]
    case: str
    plant: str | None


def _checked(round_: str | None, fmt: str, plant: str | None) -> tuple[str, ...]:
    """The rounds to make. ConfigError for a name that there is not."""
    for flag, value, legal in (
        ("ROUND", round_, ROUNDS),
        ("--format", fmt, FORMATS),
        ("--plant", plant, PLANTS),
    ):
        if value is not None and value not in legal:
            raise ConfigError(f"{flag} {value!r} is not known; use one of {', '.join(legal)}.")
    return ROUNDS if round_ is None else (round_,)


def _deadline_s(text: str) -> float:
    try:
        return float(duration(1_000, 24 * 3_600_000)(text)) / 1000
    except Refused as refused:
        raise ConfigError(f"--deadline: {refused}.") from refused


def _devices(request: Request) -> tuple[Device, ...]:
    """Those that `soak run` would take, none of them at work for another soak. CannotRun says why not."""
    sampler = Sampler(backends_for(request), clock=SystemClock())
    sampler.start()
    try:
        devices = find_devices(request, sampler)
    finally:
        sampler.stop(1_000)
    for device in devices:
        holder = "" if device.vendor == "cpu" else holder_of_card(device.gpu)
        if holder:  # two loads on one card would spoil the other's evidence
            raise CannotRun(
                f"Card {device.gpu} is held by another soak ({holder}); stop it, or wait for its end."
            )
    return devices


def _orders(device: Device, wanted: _Wanted) -> Iterator[Order]:
    """What is verified on a device. On the CPU: the load's own kernel, and Triton's by its interpreter."""
    protocol = wanted.protocol
    engines: tuple[str, ...] = ("gpu",)
    if device.vendor == "cpu":
        engines = ("cpu", "interpreter") if wanted.kernel == "auto" else ("interpreter",)
        if KERNELS.get(wanted.kernel) == "cpu":
            engines = ("cpu",)
        if wanted.kernel == "auto" and importlib.util.find_spec("triton") is None:
            say_error("Triton is not installed, so its kernels are not verified; `--kernel` would insist.")
            engines = ("cpu",)
    for engine in engines:
        interpreted = engine == "interpreter"
        yield Order(
            gpu=device.gpu,
            engine=engine,
            kernel=wanted.kernel,
            head_dim=_HEAD_DIM_SMALL if interpreted else protocol.head_dim,
            dtype="float16" if interpreted else protocol.dtype,
            limits=protocol.limits,
            seed=protocol.seed,
            rounds=wanted.rounds,
            case=wanted.case,
            plant=wanted.plant,
        )


def _environment(order: Order, device: Device) -> Mapping[str, str]:
    environment = worker_environment(device, os.environ)
    return environment | {"TRITON_INTERPRET": "1" if order.engine == "interpreter" else "0"}


def _verify(orders: Sequence[Order], devices: Mapping[str, Device], patience: Patience, fmt: str) -> int:
    """One subject after another: they would share the host's cores, and a copy's rate means nothing then."""
    began_s = time.monotonic()
    verified: list[Verified] = []
    teller = _Teller(lines=fmt == "text")
    try:
        for order in orders:
            verified.append(verify(order, _environment(order, devices[order.gpu]), patience, teller))
            if verified[-1].is_stopped:
                break
            teller.ended(verified[-1])
    except KeyboardInterrupt:
        pass  # between two subjects: the next was not begun
    finally:
        teller.waiting("")
    verified += [stopped(order) for order in orders[len(verified) :]]
    _require_cases(verified, orders)
    took_s = time.monotonic() - began_s
    is_stopped = any(each.is_stopped for each in verified)
    if is_stopped:
        say_error("Stopped before every check was made; what was printed holds.")
    if fmt != "text":
        say((as_json if fmt == "json" else as_junit)(verified, took_s))
    elif not is_stopped:
        say(f"\n{as_counts(verified, took_s)}")
    return exit_code(verified)


def _require_cases(verified: Sequence[Verified], orders: Sequence[Order]) -> None:
    """ConfigError where `--case` names none of any subject's."""
    case = orders[0].case
    if case and not any(each.results or each.refusal for each in verified):
        raise ConfigError(f"--case {case!r} is in no name of a case; `soak verify` without it shows them.")


class _Teller:
    """Says each case as it comes, where lines are wanted; on a terminal also what is being waited for."""

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self._kernel = ""

    def __call__(self, order: Order, event: About | Began | Result) -> None:
        match event:
            case About(kernel=kernel):
                self._kernel = kernel
                self._say(as_heading(order, event))
            case Began(round_, case):
                self.waiting(f"{round_}/{case}")
            case Result():
                self._say(as_line(order, event, self._kernel, colour=is_terminal(sys.stdout)))

    def ended(self, verified: Verified) -> None:
        if verified.refusal:
            self.waiting("")
            kernel = verified.about.kernel if verified.about else verified.order.kernel
            how = "was not verified whole" if verified.results else "could not be verified"
            say_error(f"{verified.order.gpu}: {kernel} {how}: {verified.refusal.rstrip('.')}.")

    def waiting(self, words: str) -> None:
        if is_terminal(sys.stderr):
            sys.stderr.write(f"\r\x1b[K{words}")
            sys.stderr.flush()

    def _say(self, text: str) -> None:
        self.waiting("")
        if self._lines:
            say(text)
