"""Results for people and for programs: text lines as they come, JSON, JUnit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from soak.report.as_json import strict
from soak.report.junit import Case, Suite, junit
from soak.report.junit import Outcome as JunitOutcome
from soak.report.wording import clean
from soak.verify.messages import About, Figure, Order, Outcome, Result
from soak.verify.session import Verified, exit_code

JSON_VERSION = 1
FORMATS = ("text", "json", "junit")
_TAGS = {Outcome.FAIL: "failure", Outcome.ERROR: "error", Outcome.SKIP: "skipped"}
_COLOURS = {Outcome.OK: 32, Outcome.FAIL: "1;31", Outcome.ERROR: 33, Outcome.SKIP: 34}  # of a terminal
_SHOWN = 2  # figures of a case that passed: those nearest to their limits


def as_heading(order: Order, about: About) -> str:
    """Which subject follows."""
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    lines = [
        f"{about.gpu}: {about.kernel}, {about.dtype}, seed {order.seed}; {versions}",
        f"  {about.reason}",
    ]
    if order.plant:
        lines.append(f"  PLANTED FAULT: {order.plant}")
    return "\n".join(clean(line) for line in lines)


def as_line(order: Order, result: Result, kernel: str, *, colour: bool = False) -> str:
    """One case; below one that did not pass, every figure and how to make it again alone."""
    outcome = f"{result.outcome:<5}"
    if colour:
        outcome = f"\x1b[{_COLOURS[result.outcome]}m{outcome}\x1b[0m"
    head = f"  {outcome} {result.id:<42} {result.took_s:6.1f} s  {clean(_told(result))}".rstrip()
    if result.outcome not in (Outcome.FAIL, Outcome.ERROR):
        return head
    margin = " " * 8
    below = [f"{margin}{_words(figure)}" for figure in result.figures]
    return "\n".join([head, *below, f"{margin}again, alone: {again(order, result, kernel)}"])


def again(order: Order, result: Result, kernel: str) -> str:
    """The command that makes this case and no other."""
    plant = f" --plant {order.plant}" if order.plant else ""
    return (
        f"soak verify {result.round} --device {order.gpu} --kernel {kernel} --seed {order.seed} "
        f"--case {result.case}{plant}"
    )


def as_counts(verified: Sequence[Verified], took_s: float) -> str:
    """The last line."""
    outcomes = [result.outcome for each in verified for result in each.results]
    told = [f"{n} {name}" for name in Outcome if (n := outcomes.count(name))]
    return f"{', '.join(told) or 'nothing was made'}; {took_s:.1f} s"


def as_json(verified: Sequence[Verified], took_s: float) -> str:
    """Everything, with the command that makes each case again."""
    document = {
        "version": JSON_VERSION,
        "exit_code": exit_code(verified),
        "took_s": took_s,
        "subjects": [_subject(each) for each in verified],
    }
    return msgspec.json.format(msgspec.json.encode(strict(document)), indent=1).decode()


def _subject(each: Verified) -> dict[str, object]:
    kernel = each.about.kernel if each.about else each.order.kernel
    about = msgspec.to_builtins(each.about) if each.about else {"gpu": each.order.gpu, "kernel": kernel}
    return {
        **about,
        "engine": each.order.engine,
        "seed": each.order.seed,
        "planted": each.order.plant,
        "refusal": each.refusal or None,
        "cases": [
            {**msgspec.to_builtins(result), "again": again(each.order, result, kernel)}
            for result in each.results
        ],
    }


def as_junit(verified: Sequence[Verified], took_s: float) -> str:
    """A suite a subject; one that could not be verified has an error of its own."""
    suites = [_suite(each) for each in verified]
    if not suites:
        nothing = Case("start", took_s, JunitOutcome("error", "cannot run", "nothing was verified"))
        suites = [Suite("soak.verify", [nothing], took_s)]
    return junit("soak verify", suites).rstrip("\n")


def _suite(each: Verified) -> Suite:
    kernel = each.about.kernel if each.about else each.order.kernel
    cases = [_case(each.order, result, kernel) for result in each.results]
    if each.refusal or not cases:
        says = each.refusal or "no case was made"
        kind = "stopped" if each.is_stopped else "cannot run"
        cases.append(Case("all cases", 0.0, JunitOutcome("error", kind, says)))
    facts = {"gpu": each.order.gpu, "kernel": kernel, "seed": str(each.order.seed)}
    facts |= {"planted": each.order.plant or ""}
    if each.about:
        facts |= {"reason": each.about.reason, "dtype": each.about.dtype}
        facts |= {f"version.{name}": version for name, version in each.about.versions.items()}
    took_s = sum(result.took_s for result in each.results)
    return Suite(f"soak.verify.{each.order.gpu}.{kernel}", cases, took_s, facts=facts)


def _case(order: Order, result: Result, kernel: str) -> Case:
    figures = "\n".join(_words(figure) for figure in result.figures)
    tag = _TAGS.get(result.outcome)
    if tag is None:
        return Case(result.id, result.took_s, says="\n".join(filter(None, (result.says, figures))))
    text = f"{figures}\nagain, alone: {again(order, result, kernel)}".strip()
    kind = "skipped" if tag == "skipped" else result.round
    return Case(result.id, result.took_s, JunitOutcome(tag, kind, result.says or result.outcome, clean(text)))


def _told(result: Result) -> str:
    """What was wrong; of a case that passed, the figures nearest to their limits."""
    if result.outcome is not Outcome.OK:
        return result.says
    limited = [figure for figure in result.figures if figure.limit is not None]
    nearest = sorted(limited, key=_share, reverse=True)[:_SHOWN]
    free = [figure for figure in result.figures if figure.limit is None]
    return "; ".join(filter(None, (", ".join(_words(f) for f in (*nearest, *free)), result.says)))


def _share(figure: Figure) -> float:
    """Of its limit; a floor's other way round."""
    assert figure.limit is not None
    above, below = (figure.limit, figure.value) if figure.floor else (figure.value, figure.limit)
    return above / below if below else float(above > 0)


def _words(figure: Figure) -> str:
    words = f"{figure.name} {figure.value:.3g}{figure.unit}"
    if figure.limit is None:
        return words
    return f"{words} ({'at least' if figure.floor else 'of'} {figure.limit:.3g})"
