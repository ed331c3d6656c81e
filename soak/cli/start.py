"""Everything to be settled before a run starts: cards, configuration, what to take up."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from soak import __version__
from soak.cli.trial import Trial
from soak.clock import SystemClock
from soak.config import Config, Request, protocol_from_config, resolve, select
from soak.core.errors import CannotRun, ConfigError
from soak.core.reach import out_of_reach
from soak.core.records import Device, RunInfo, RunRecord
from soak.core.resume import Decision, OnInterrupt, What, decide
from soak.core.verdict import Judgement, judge
from soak.load.memory import bytes_needed
from soak.run import Plan
from soak.store.db import Database
from soak.telemetry import access
from soak.telemetry.pci import gpus_on_bus
from soak.telemetry.watch import Sampler

GPU_BACKENDS = ("amd", "nvidia")


@dataclass(frozen=True, slots=True)
class Settled:
    """A start that may go ahead (`plan`), or the run that is finished already (`finished`)."""

    config: Config
    devices: tuple[Device, ...]
    decision: Decision
    plan: Plan | None = None
    finished: RunRecord | None = None


def backends_for(request: Request) -> tuple[str, ...]:
    """The telemetry backends that can know the devices asked for."""
    return ("cpu",) if request.device == ("cpu",) else GPU_BACKENDS


def find_devices(request: Request, sampler: Sampler, root: Path = Path("/")) -> tuple[Device, ...]:
    """The cards that are meant, as telemetry found them. CannotRun where they are not what was asked for."""
    found = sampler.devices()
    if not found:
        why = "; ".join(f"{backend}: {reason}" for backend, reason in sampler.absences.items())
        if request.device == ("cpu",):
            raise CannotRun(
                f"The CPU cannot be watched ({why or 'it was not found'}); `soak doctor` says more."
            )
        hint = access.none_found(root).rstrip(".") or "`soak doctor` says more"
        raise CannotRun(
            f"No usable GPU on this machine ({why or 'none was found'}): {hint}; "
            "`--device cpu` soaks the CPU instead."
        )
    devices = select(request.device, found)
    if root == Path("/"):
        for gpu, reason in access.closed(devices).items():
            raise CannotRun(f"{gpu}: {reason}.")
    expected = request.expect_gpus
    names = ", ".join(d.gpu for d in devices)
    if expected is not None and len(devices) != expected:
        raise CannotRun(f"{expected} GPUs are expected and {len(devices)} are there ({names}).")
    if expected is None and "all" in request.device:
        _require_whole_bus(found, names, root)
    return devices


def _require_whole_bus(found: Sequence[Device], names: str, root: Path) -> None:
    """`all` means every GPU on the PCI bus of the vendors found, not every one that answered."""
    for vendor in sorted({d.vendor for d in found}):
        offered = {d.gpu for d in found if d.vendor == vendor}
        silent = [gpu for gpu in gpus_on_bus(root, vendor) if gpu not in offered]
        if silent:
            raise CannotRun(
                f"The PCI bus has {vendor} GPUs that are not offered ({', '.join(silent)}; offered {names}); "
                f"bring them back, or say how many are meant with --expect-gpus {len(found)}."
            )


@dataclass(frozen=True, slots=True)
class Home:
    """Where runs are kept, and which machine this is, in which boot."""

    database: Database
    host: str
    boot: str


def settle(
    request: Request, trial: Trial, devices: tuple[Device, ...], home: Home, clock: SystemClock
) -> Settled:
    """Resolves the configuration for these cards and decides what this start does."""
    database, host = home.database, home.host
    config = resolve(request, devices, drawn_seed=secrets.randbelow(1 << 31))
    found = _earlier_run(config, devices, database, host)
    judged = None if found is None else judge(found, protocol_from_config(found.info.config))
    decision = decide(
        found,
        None if judged is None else judged.verdict,
        on_interrupt=OnInterrupt(config.on_interrupt),
        by_id=config.run_id is not None,
        boot_id=home.boot,
        boot_ms=clock.boot_ms(),
        utc_ms=clock.utc_ms(),
    )
    if decision.what is What.FINISHED:
        return Settled(config, devices, decision, finished=found)
    before = decision.before
    if before is not None and decision.what in (What.ATTEMPT, What.CONTINUE):
        _require_same(config, devices, before)
        config = config.with_seed(before.info.seed, f"run {before.info.run_id}")
        info = replace(before.info, devices=devices, config=before.info.config)
    else:
        before, info = None, _new_run(config, trial, devices, host, clock)
    _require_reach(config, devices)
    require_fit(config, devices)
    plan = Plan(
        info,
        config.protocol(),
        home.boot,
        attempt=decision.attempt,
        before=before,
        continues=decision.what is What.CONTINUE,
        happened=decision.happened,
        stop_on_fail=config.stop_on == "fail",
    )
    return Settled(config, devices, decision, plan)


def _earlier_run(
    config: Config, devices: Sequence[Device], database: Database, host: str
) -> RunRecord | None:
    """The run named by --run-id; else the newest one of this host, these cards and this protocol."""
    runs = database.runs()
    if config.run_id is not None:
        known = any(summary.info.run_id == config.run_id for summary in runs)
        return database.load(config.run_id) if known else None
    gpus = {d.gpu for d in devices}
    for summary in runs:
        info = summary.info
        same = {d.gpu for d in info.devices} == gpus and not swapped(devices, info.devices)
        if info.host_id == host and same and config.same_plan(info.config):
            return database.load(info.run_id)
    return None


def swapped(devices: Sequence[Device], before: Sequence[Device]) -> list[str]:
    """Where another card sits now than `before`, by PCI address: an address is a place, not a card. A card
    that tells no UUID is taken for the one that was there."""
    known = {d.gpu: d.uuid for d in before}
    return [d.gpu for d in devices if d.uuid and known.get(d.gpu) and d.uuid != known[d.gpu]]


def _require_same(config: Config, devices: Sequence[Device], before: RunRecord) -> None:
    """A run is taken up only as it was begun. ConfigError names what differs."""
    info = before.info
    ours, theirs = [d.gpu for d in devices], [d.gpu for d in info.devices]
    if sorted(ours) != sorted(theirs):
        raise ConfigError(
            f"Run {info.run_id} was begun on {', '.join(theirs)}, not on {', '.join(ours)}; "
            "give the same --device or another --run-id."
        )
    others = swapped(devices, info.devices)
    if others:
        raise ConfigError(
            f"Run {info.run_id} was begun on another card than the one that is now at {', '.join(others)}; "
            "give another --run-id."
        )
    if not config.same_plan(info.config):
        effective = config.effective()
        differing = [
            f"{key} {info.config.get(key)}, now {value}"
            for key, value in effective.items()
            if key in _PLAN_KEYS and info.config.get(key) != value
        ]
        raise ConfigError(
            f"Run {info.run_id} was begun with another protocol ({'; '.join(differing) or 'its limits'}); "
            "give the same options or another --run-id."
        )


_PLAN_KEYS = (
    "duration", "kernel", "head_dim", "heads", "tokens", "seq_len", "rotate_every", "check_every",
    "sample_every", "poll_every", "warmup", "profile", "seed",
)  # fmt: skip


def _require_reach(config: Config, devices: Sequence[Device]) -> None:
    missing = out_of_reach(config.protocol(), devices, config.waive)
    if missing and not config.accept_inconclusive:
        raise CannotRun(f"{'; '.join(missing)}; `--accept-inconclusive` starts all the same.")


def require_fit(config: Config, devices: Sequence[Device]) -> None:
    """ConfigError where a card's memory cannot hold the load, with the most tokens that it can."""
    protocol = config.protocol()
    needed = bytes_needed(protocol)
    for device in devices:
        has = device.memory_total_bytes
        if has is None or needed <= has:
            continue
        smaller = (replace(protocol, tokens=n) for n in _powers_of_two(protocol.tokens))
        fits = next((p.tokens for p in smaller if bytes_needed(p) <= has), None)
        advice = f"--tokens {fits} fits" if fits else "lower --heads, --head-dim or --seq-len"
        raise ConfigError(
            f"{device.gpu} has {has / 2**30:.1f} GiB and the load takes {needed / 2**30:.1f} GiB with "
            f"--tokens {protocol.tokens}, --heads {protocol.heads} and --seq-len up to "
            f"{protocol.seq_len_max}; {advice}."
        )


def _powers_of_two(below: int) -> list[int]:
    """Falling, from the largest under `below` to 1."""
    return [1 << bit for bit in reversed(range(max(below - 1, 1).bit_length()))]


def _new_run(
    config: Config, trial: Trial, devices: tuple[Device, ...], host: str, clock: SystemClock
) -> RunInfo:
    utc_ms = clock.utc_ms()
    stamp = datetime.fromtimestamp(utc_ms / 1000, UTC).strftime("%Y%m%d-%H%M%S")
    return RunInfo(
        run_id=config.run_id or f"{stamp}-{secrets.token_hex(2)}",
        created_utc_ms=utc_ms,
        host_id=host,
        profile=config.profile,
        profile_reason=config.profile_reason,
        seed=config.seed,
        kernel=config.kernel,
        simulated=trial.is_recorded,
        devices=devices,
        config=config.effective(),
        waived=tuple(config.waive),
        labels={**config.label, **trial.labels},
        versions={"soak": __version__, "python": platform.python_version()},
    )


def exit_judgement(record: RunRecord) -> Judgement:
    """The verdict of a stored run, by its own stored protocol."""
    return judge(record, protocol_from_config(record.info.config))
