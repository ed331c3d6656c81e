"""`soak doctor`: the checklist before a run, of the run that the same options would start."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from soak.child import Child
from soak.cli.options import given, options
from soak.cli.run import settings_of
from soak.cli.say import is_terminal, say, say_error
from soak.cli.start import backends_for, find_devices
from soak.cli.trial import trial_of
from soak.clock import SystemClock
from soak.config import OPTIONS, Request, parse, resolve
from soak.core.errors import EXIT_PASS, CannotRun
from soak.core.records import Device
from soak.doctor.captured import Captured
from soak.doctor.checks import judged
from soak.doctor.examine import POLL_MS, examine
from soak.doctor.facts import Facts, Intent
from soak.doctor.line import Level, Line, exit_code
from soak.doctor.look import Quest, Subject
from soak.telemetry.watch import Sampler

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red", Level.SKIP: "blue"}
_ECC_EVERY_MS = 10_000
_CAPTURE_S = 120.0
JSON_VERSION = 1


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option(
    "--sysfs-root", metavar="DIR", help="Look at the cards of a recorded machine; they cannot be loaded."
)
@click.option(
    "--capture", metavar="DIR", help="Write what this machine's sensors answer, without names, and end."
)
@options(OPTIONS)
def doctor(as_json: bool, sysfs_root: str | None, capture: str | None, **flags: Any) -> int:
    """Look at all that a run depends on, and say what to do. Takes the options of `soak run`.

    Exit codes: 0 all is well, 3 warnings, 1 a run would not start or could not work.
    """
    request = parse(given(flags), os.environ)
    began_ms = SystemClock().boot_ms()
    root = trial_of(None, sysfs_root).root
    if capture is not None:
        return _capture(request, root, Path(capture))
    facts = _facts(request, root)
    lines = judged(facts)
    took_s = (SystemClock().boot_ms() - began_ms) / 1000
    width = shutil.get_terminal_size((110, 25)).columns
    shown = as_document(lines) if as_json else as_checklist(lines, took_s, width, is_terminal(sys.stdout))
    say(shown)
    return exit_code(lines)


def _facts(request: Request, root: Path) -> Facts:
    sampler = Sampler(backends_for(request), root, clock=SystemClock())
    sampler.start()
    try:
        intent = _intent(request, sampler, root)
        if intent.devices:
            sampler.watch([d.gpu for d in intent.devices], POLL_MS, _ECC_EVERY_MS)
        return examine(intent, _quest(request, intent.devices, root), sampler, say=_say)
    finally:
        sampler.stop(1_000)
        _say("")


def _intent(request: Request, sampler: Sampler, root: Path) -> Intent:
    """The run that would be started."""
    try:
        devices = find_devices(request, sampler, root)
    except CannotRun as error:
        return Intent(refusal=str(error))
    config = resolve(request, devices, drawn_seed=0)
    return Intent(
        devices,
        protocol=config.protocol(),
        profile=config.profile,
        waived=tuple(config.waive),
        accept_inconclusive=config.accept_inconclusive,
    )


def _quest(request: Request, devices: Sequence[Device], root: Path) -> Quest:
    settings = request.settings
    return Quest(
        root=str(root),
        data_dir=str(settings["data_dir"].value),
        database=settings["database"].value,
        listen=settings_of(request, "listen"),
        compiles=request.device != ("cpu",),
        cards=tuple(Subject(d.gpu, d.vendor) for d in devices),
    )


def _capture(request: Request, root: Path, folder: Path) -> int:
    """Writes captures; 0 where there is one. CannotRun says why there is none."""
    vendors = backends_for(request)
    vendors = vendors if "cpu" in vendors else (*vendors, "cpu")
    child: Child[Captured] = Child("soak.doctor.capture", (str(root), str(folder), *vendors), Captured)
    try:
        found, complete = child.wait(lambda seen: len(seen) == len(vendors), _CAPTURE_S)
        silent = "" if complete else child.why_silent(_CAPTURE_S)
    finally:
        child.end()
    absent = [f"{captured.vendor}: {captured.absence}" for captured in found if captured.absence]
    for captured in found:
        if not captured.absence:
            say(as_words(captured))
    for reason in absent + ([f"the rest: {silent}"] if silent else []):
        say_error(f"not captured: {reason}")
    if len(absent) == len(found):
        raise CannotRun(f"Nothing was captured ({'; '.join(absent) or silent}).")
    return EXIT_PASS


def as_words(captured: Captured) -> str:
    """What was written, and what it lacks."""
    parts = [f"{len(captured.cards)} card{'s' * (len(captured.cards) > 1)}", f"{captured.n_files} files"]
    if captured.n_answers:
        parts.append(f"{captured.n_answers} answers of NVML")
    parts.append(captured.log or f"{captured.n_log_lines} lines of the kernel log")
    lines = [f"{captured.folder}: {', '.join(parts)}"]
    lines += [f"  read otherwise of the capture: {difference}" for difference in captured.differing]
    return "\n".join([*lines, "  read it through before you pass it on, README.md first"])


def as_checklist(lines: Sequence[Line], took_s: float, width: int = 100, colour: bool = False) -> str:
    """For people: a line a check, and what to do below it."""
    name_width = max(len(line.check) for line in lines)
    gpu_width = max(len(line.gpu or "") for line in lines)
    shown = []
    for line in lines:
        level = f"{line.level:<4}"
        if colour:
            level = click.style(level, fg=_COLOURS[line.level], bold=line.level is Level.FAIL)
        where = f"{line.gpu or '':<{gpu_width}}  " if gpu_width else ""
        head = f"  {line.check:<{name_width}}  {where}"
        margin = " " * (len(head) + 4)
        says = [*_wrapped(line.says, width - len(margin)), *_wrapped(line.remedy, width - len(margin))]
        shown.append(level + head + f"\n{margin}".join(says))
    counts = {level: sum(line.level is level for line in lines) for level in Level}
    told = ", ".join(f"{n} {level}" for level, n in counts.items() if n)
    return "\n".join([*shown, "", f"{told}; {took_s:.0f} s"])


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 40), break_long_words=False, break_on_hyphens=False)


def as_document(lines: Sequence[Line]) -> str:
    """For programs."""
    document = {
        "version": JSON_VERSION,
        "exit_code": exit_code(lines),
        "lines": [msgspec.to_builtins(line) for line in lines],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _say(words: str) -> None:
    """What is being waited for, on a terminal."""
    if is_terminal(sys.stderr):
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()
