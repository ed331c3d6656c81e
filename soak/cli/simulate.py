"""`soak simulate`: whole runs in virtual time, through the code of a real one."""

from __future__ import annotations

import os
import secrets
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import click

from soak import __version__
from soak.cli.options import common, given
from soak.cli.report import EXIT_CODES, rendered
from soak.cli.say import is_terminal, say, say_error
from soak.config import Config, parse, protocol_from_config, resolve
from soak.core.errors import EXIT_FAIL, EXIT_PASS, ConfigError
from soak.core.records import RunInfo
from soak.core.resume import OnInterrupt
from soak.core.verdict import judge
from soak.simulate import (
    SCENARIOS,
    Scenario,
    Stage,
    VirtualClock,
    campaign,
    simulated_devices,
)
from soak.simulate import simulate as play
from soak.store.db import Database
from soak.store.folder import prepare_folder
from soak.store.writer import Writer

DATABASE = "simulated.db"
_TAKEN = ("duration", "seed", "on_interrupt", "waive")


@click.command()
@click.option("--scenario", metavar="NAME", help="What goes wrong; see --list.")
@click.option("--list", "show_list", is_flag=True, help="List the scenarios and their verdicts.")
@click.option("--gpus", default="1", metavar="N", help="How many cards.  [default: 1]")
@click.option("--campaign", metavar="N", help="N runs with drawn faults, held against an oracle.")
@click.option("--duration", metavar="TEXT", help="Planned length.  [default: 48h]")
@click.option("--seed", metavar="N", help="Of shapes, inputs and drawn faults; drawn once if not given.")
@click.option("--on-interrupt", metavar="TEXT", help="As for `soak run`.")
@click.option("--waive", multiple=True, metavar="TEXT", help="As for `soak run`.")
@common
def simulate(scenario: str | None, show_list: bool, gpus: str, **flags: Any) -> int:
    """Play a scenario in virtual time on cards that do not exist; the exit code is the verdict's."""
    n_campaign = flags.pop("campaign")
    if show_list:
        return _list()
    n_gpus = _count("--gpus", gpus, 64)
    config = _config({**given(flags), "profile": "mi50", "accept_inconclusive": True})
    if n_campaign is not None:
        return _campaign(config, _count("--campaign", n_campaign, 1_000_000), n_gpus)
    return _one(config, _known(scenario), n_gpus)


def _list() -> int:
    width = max(len(name) for name in SCENARIOS)
    for name, scenario in SCENARIOS.items():
        deciding = f" ({scenario.criterion})" if scenario.criterion else ""
        say(f"{name:<{width}}  {scenario.verdict.upper() + deciding:<24}  {scenario.about}")
    return EXIT_PASS


def _count(option: str, text: str, most: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ConfigError(f"{option} {text!r} is not a number from 1 to {most}.")
    return int(text)


def _known(name: str | None) -> Scenario:
    if name is None:
        raise ConfigError(f"--scenario is missing; choose one of {', '.join(SCENARIOS)}.")
    if name not in SCENARIOS:
        raise ConfigError(f"--scenario {name!r} is not known; choose one of {', '.join(SCENARIOS)}.")
    return SCENARIOS[name]


def _config(flags: dict[str, Any]) -> Config:
    request = parse(flags, os.environ, database_name=DATABASE)
    return resolve(request, (), drawn_seed=secrets.randbelow(1 << 31))


def _one(config: Config, scenario: Scenario, n_gpus: int) -> int:
    prepare_folder(config.data_dir)
    info = _info(config, scenario, n_gpus)
    say_error(f"SIMULATED: {scenario.name}: {scenario.about} (run {info.run_id}, seed {info.seed})")
    with Database.open(config.database, durable=False) as database:
        database.upgrade()
        clock = VirtualClock(utc_ms=info.created_utc_ms)
        writer = Writer(database, info.run_id, clock, threaded=False)
        stage = Stage(clock, writer, _Disk(writer), lambda: database.load(info.run_id))
        began_s = time.monotonic()
        play(scenario, info, config.protocol(), stage, OnInterrupt(config.on_interrupt))
        took_s = time.monotonic() - began_s
        record = database.load(info.run_id)
    judgement = judge(record, protocol_from_config(record.info.config))
    say(rendered(record, judgement, "text", colour=is_terminal(sys.stdout)).rstrip("\n"))
    hours = record.attempts[-1].elapsed_ms / 3_600_000
    say_error(f"SIMULATED: {hours:.1f} h in {took_s:.1f} s")
    return EXIT_CODES[judgement.verdict]


@dataclass(frozen=True, slots=True)
class _Disk:
    """SQLite itself refuses to grow, as on a full disk."""

    writer: Writer

    def fill(self) -> None:
        self.writer.limit_space(0)

    def free(self) -> None:
        self.writer.limit_space(None)


def _info(config: Config, scenario: Scenario, n_gpus: int) -> RunInfo:
    utc_ms = time.time_ns() // 1_000_000
    devices = simulated_devices(scenario, n_gpus)
    return RunInfo(
        run_id=f"simulated-{scenario.name}-{config.seed}-{secrets.token_hex(2)}",
        created_utc_ms=utc_ms,
        host_id="simulated",
        profile=config.profile,
        profile_reason="the simulated cards are MI50s",
        seed=config.seed,
        kernel="simulated",
        simulated=True,
        devices=devices,
        config=config.effective(),
        waived=tuple(config.waive),
        labels={"scenario": scenario.name},
        versions={"soak": __version__},
    )


def _campaign(config: Config, n: int, n_gpus: int) -> int:
    """N runs in memory, each with its own drawn faults; every verdict held against the oracle's."""
    agreed = 0
    for index in range(n):
        seeded = config.with_seed(config.seed + index, "campaign")
        scenario = campaign.drawn(seeded.seed, n_gpus)
        info = replace(_info(seeded, scenario, n_gpus), created_utc_ms=1_767_225_600_000)
        outcome = campaign.play(scenario, info, seeded.protocol())
        if outcome.agrees:
            agreed += 1
        else:
            say(f"seed {seeded.seed}: {outcome.words}")
    say(f"SIMULATED campaign: {agreed} of {n} runs agree with the oracle (seeds from {config.seed})")
    return EXIT_PASS if agreed == n else EXIT_FAIL
