"""`soak run`: the daemon, in the foreground, one run."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import click

from soak.cli.options import given, options
from soak.cli.report import EXIT_CODES, rendered
from soak.cli.say import is_terminal, say, say_error
from soak.cli.start import Home, Settled, backends_for, exit_judgement, find_devices, settle
from soak.cli.trial import Trial, trial_of
from soak.cli.view import set_up_logging, watching
from soak.clock import SystemClock
from soak.config import OPTIONS, Request, format_duration, parse, resolve
from soak.core.errors import EXIT_PASS, CannotRun
from soak.core.records import Device, RunRecord, State
from soak.core.snapshot import Snapshot
from soak.core.verdict import Judgement
from soak.exporter import Exporter
from soak.load.pool import Pool
from soak.run import Plan, Run
from soak.schedule import Inbox, drive, handle_signals
from soak.store.db import Database
from soak.store.folder import prepare_folder
from soak.store.host import boot_id, host_id, this_process
from soak.store.lease import Lease
from soak.store.sqlite import network_file_system
from soak.store.writer import Writer
from soak.telemetry.watch import Sampler
from soak.web import Surface

log = logging.getLogger("soak")
_WATCHERS_MOST_S = 5.0  # after the end, for those who watch


@click.command()
@options(OPTIONS)
@click.option("--show-config", is_flag=True, help="Print each effective value and its source, and exit.")
@click.option(
    "--inject-bit-flip",
    metavar="ROTATION:STEP",
    help="Flip one bit of an output there, to prove that it is found; the run is labelled so.",
)
@click.option(
    "--sysfs-root",
    metavar="DIR",
    help="Read sensors of a recorded machine; the CPU stands in for its cards, the run is marked SIMULATED.",
)
def run(show_config: bool, inject_bit_flip: str | None, sysfs_root: str | None, **flags: Any) -> int:
    """Soak the cards and judge them; ends with the certificate, the exit code is the verdict's."""
    request = parse(given(flags), os.environ)
    trial = trial_of(inject_bit_flip, sysfs_root)
    if show_config:
        return _show_config(request, trial)
    clock, inbox = SystemClock(), Inbox()
    undo_signals = handle_signals(inbox)
    try:
        with ExitStack() as stack:
            return _run(request, trial, clock, inbox, stack)
    finally:
        undo_signals()


def _show_config(request: Request, trial: Trial) -> int:
    """The configuration on the cards of this machine, or, without any, on a card of no known kind."""
    devices: tuple[Device, ...] = ()
    sampler = Sampler(backends_for(request), trial.root, clock=SystemClock())
    sampler.start()
    try:
        devices = find_devices(request, sampler, trial.root)
    except CannotRun as error:
        say_error(f"{error} What follows is for a card of no known kind.")
    finally:
        sampler.stop(1_000)
    config = resolve(request, devices, drawn_seed=0)
    rows = config.rows()
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for key, value, source in rows:
        say(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}")
    return EXIT_PASS


def _run(request: Request, trial: Trial, clock: SystemClock, inbox: Inbox, stack: ExitStack) -> int:
    settings = request.settings
    set_up_logging(settings_of(request, "log_level"), settings_of(request, "log_format"))
    folder = prepare_folder(settings["data_dir"].value)
    host = host_id(folder)
    database = stack.enter_context(Database.open(settings["database"].value))
    database.upgrade()
    surface = Surface(settings_of(request, "listen"), Exporter().render)
    surface.start()
    stack.callback(surface.stop, 500)
    sampler = Sampler(backends_for(request), trial.root, clock=clock)
    stack.callback(sampler.stop, 700)
    sampler.start()
    devices = find_devices(request, sampler, trial.root)
    settled = settle(request, trial, devices, Home(database, host, boot_id()), clock)
    shared = network_file_system(folder) is not None
    lease = Lease(database, this_process(host), clock, folder=folder, folder_is_shared=shared)
    if settled.plan is None:
        _announce(settled, database)
        return _print_finished(settled, database, clock, lease, stack)
    lease.acquire(settled.plan.info.run_id, [d.gpu for d in devices])
    stack.callback(lease.release)
    _require_unchanged(settled, database)
    _announce(settled, database)
    log.info("metrics and pages on %s", surface.url)
    return _soak(settled, settled.plan, trial, _Parts(database, sampler, lease, surface, clock, inbox))


def _require_unchanged(settled: Settled, database: Database) -> None:
    """Between the decision and the lease another daemon may have had the run."""
    before = settled.decision.before
    if before is not None and database.load(before.info.run_id).attempts != before.attempts:
        raise CannotRun(f"Run {before.info.run_id} was changed by another daemon just now; start again.")


def settings_of(request: Request, name: str) -> Any:
    """The value of an option that no profile sets, or its default."""
    setting = request.settings.get(name)
    return setting.value if setting is not None else OPTIONS[name].read(OPTIONS[name].default)


def _announce(settled: Settled, database: Database) -> None:
    config, decision = settled.config, settled.decision
    for warning in config.warnings:
        log.warning(warning)
    cards = ", ".join(f"{d.gpu} ({d.model or d.arch or d.vendor})" for d in settled.devices)
    log.info("soaking %s; profile %s: %s", cards, config.profile, config.profile_reason)
    log.info("database %s; %s", database.where, decision.reason)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a run is made of here; each was started or opened already, and is ended by its owner."""

    database: Database
    sampler: Sampler
    lease: Lease
    surface: Surface
    clock: SystemClock
    inbox: Inbox


def _soak(settled: Settled, plan: Plan, trial: Trial, parts: _Parts) -> int:
    protocol, run_id, clock = plan.protocol, plan.info.run_id, parts.clock
    _close_what_was_left(settled, parts.database, clock)
    writer = Writer(parts.database, run_id, clock, lease=parts.lease)
    parts.sampler.watch([d.gpu for d in settled.devices], protocol.poll_ms, protocol.ecc_every_ms)
    pool = Pool(
        settled.devices,
        protocol,
        clock,
        rotation=protocol.rotation_index(plan.start_ms),
        inject_bit_flip=trial.bit_flip,
        stand_in=trial.is_recorded,
    )
    the_run = Run(plan, clock, parts.sampler, pool, writer)
    log.info("run %s, attempt %d, seed %d", run_id, plan.attempt, plan.info.seed)

    def publish(message: str = "") -> Snapshot:
        snapshot = the_run.snapshot(message)
        parts.surface.publish(snapshot, lambda: _run_json(parts.database, run_id))
        return snapshot

    try:
        pool.start()
        with watching() as show:
            end, judgement = drive(
                the_run, protocol, clock, parts.inbox, lambda _, said: show(publish(said)), _confirm(the_run)
            )
        publish()
    finally:
        pool.stop(2_000)
        writer.close(1_000)
    _print_certificate(parts.database, run_id, judgement, end)
    if end != "interrupted":  # who stops it is not waiting for the verdict to be scraped
        _linger(settled.config.linger_ms, parts)
    return EXIT_CODES[judgement.verdict]


def _run_json(database: Database, run_id: str) -> str:
    """The report of the run in progress, as `soak report --format json` would give it."""
    record = database.load(run_id)
    return rendered(record, exit_judgement(record), "json")


def _linger(linger_ms: int, parts: _Parts) -> None:
    """Keeps metrics and pages up for a while, so that the verdict is scraped, and then for whoever watched a
    moment ago, so that `soak watch` ends with the run's exit code. A signal ends it."""
    end_s = time.monotonic() + linger_ms / 1000
    if linger_ms:
        log.info("metrics and pages stay for %s; a signal ends it sooner", format_duration(linger_ms))
    while True:
        left_s = end_s - time.monotonic()
        if left_s <= 0 and not (left_s > -_WATCHERS_MOST_S and parts.surface.is_watched()):
            return
        if any(isinstance(item, int) for item in parts.inbox.wait(max(left_s, 0.1))):
            return


def _close_what_was_left(settled: Settled, database: Database, clock: SystemClock) -> None:
    """Writes the end of an attempt that was left without one, by a kill or a crash of the machine."""
    decision = settled.decision
    if decision.ended is None or decision.before is None:
        return
    writer = Writer(database, decision.before.info.run_id, clock, threaded=False)
    writer.write(decision.ended)
    writer.close(5_000)


def _confirm(the_run: Run) -> Any:
    """On a terminal the first Ctrl-C says what would be lost, the second stops; another signal does too."""
    asked = False

    def confirm(number: int) -> bool:
        nonlocal asked
        if number != signal.SIGINT or asked or not is_terminal(sys.stdin):
            return True
        asked = True
        hours = the_run.elapsed_ms() / 3_600_000
        log.warning(
            "Ctrl-C again stops the run: %.2f h are recorded, but a run that is stopped never passes", hours
        )
        return False

    return confirm


def _print_finished(
    settled: Settled, database: Database, clock: SystemClock, lease: Lease, stack: ExitStack
) -> int:
    """`--run-id` of a run that is finished, or that this start closes: its verdict, nothing is run."""
    assert settled.finished is not None
    run_id = settled.finished.info.run_id
    ended = settled.decision.ended
    if ended is not None:
        try:
            lease.acquire(run_id, [])
        except CannotRun:  # a daemon is at it: closing is not for us, and a run that failed has its verdict
            if ended.end == "closed":
                raise
        else:
            stack.callback(lease.release)
            _require_unchanged(settled, database)
            _close_what_was_left(settled, database, clock)
    record = database.load(run_id)
    judgement = exit_judgement(record)
    say(rendered(record, judgement, "text", colour=is_terminal(sys.stdout)).rstrip("\n"))
    return EXIT_CODES[judgement.verdict]


def _print_certificate(database: Database, run_id: str, judgement: Judgement, end: str) -> None:
    """Says how the run ended; what cannot be printed any more does not change how it ended."""
    try:
        say(_certificate(database, run_id, judgement, end))
    except CannotRun as error:
        say_error(f"{error} Run {run_id}: {judgement.words}; `soak report --run-id {run_id}` prints it.")


def _certificate(database: Database, run_id: str, judgement: Judgement, end: str) -> str:
    """The certificate from the store; where that lost the end of the run, what was reached live."""
    if not any(card.findings for card in judgement.cards):
        return f"Stopped before the clock started ({end}); nothing was recorded."
    try:
        record: RunRecord = database.load(run_id)
    except CannotRun as error:
        say_error(str(error))
        return _as_reached(judgement, run_id)
    stored = exit_judgement(record)
    if not stored.complete or stored.verdict is not judgement.verdict:
        return _as_reached(judgement, run_id)
    return rendered(record, stored, "text", colour=is_terminal(sys.stdout)).rstrip("\n")


def _as_reached(judgement: Judgement, run_id: str) -> str:
    lines = [f"{judgement.words} (run {run_id}, as reached live; the store does not hold its end)"]
    for card in judgement.cards:
        lines += [
            f"  {found.gpu} {found.criterion} {found.state}: {found.reason}"
            for found in card.findings
            if found.required and found.state is not State.PASS
        ]
    return "\n".join(lines)
