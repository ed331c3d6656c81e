"""The checklist as data: each check's name, how its lines follow from the facts, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from soak.doctor import checks_of_cards as of_cards
from soak.doctor import checks_of_load as of_load
from soak.doctor.facts import Facts
from soak.doctor.line import Level, Line

Judge = Callable[[Facts], Iterable[Line]]


@dataclass(frozen=True, slots=True)
class Check:
    """`run` gives the check's lines, none where it does not apply; `remedy` is what to do where a line is not
    ok and names nothing better ("": what the line says ends with it)."""

    name: str
    run: Judge
    remedy: str


def _told(name: str, level: Level = Level.FAIL) -> Judge:
    """What the looking child was told, of the machine or of each card; a fault is of this level."""

    def judge(facts: Facts) -> Iterator[Line]:
        for (asked, gpu), told in facts.places.items():
            if asked == name and (told.fault or told.says):
                yield Line(name, level if told.fault else Level.OK, told.fault or told.says, gpu=gpu)

    return judge


CHECKS: Sequence[Check] = (
    Check(
        "card",
        of_cards.card,
        "Load the vendor's driver on the host, or name the cards that are there with --device.",
    ),
    Check("driver", of_cards.driver, "Install or load the vendor's driver on the host."),
    Check("access", _told("access"), ""),
    Check("reach", of_cards.reach, "`--accept-inconclusive` starts all the same; `--waive ecc` covers ECC."),
    Check(
        "sensors", of_cards.sensors, "Look at the driver's log; a card in reset or suspend may answer later."
    ),
    Check("ecc", of_cards.ecc, "Switch ECC on and reboot, or start with `--waive ecc`."),
    Check("memory history", of_cards.memory_history, "Reset the card or reboot before the run."),
    Check("memory", of_cards.free_memory, "End what holds the card's memory, or give fewer --tokens."),
    Check("power cap", of_cards.power_cap, "Set the cap back to the card's default."),
    Check("temperature", of_cards.temperature_limits, "Look at the card's limits before you trust the run."),
    Check("settings", of_cards.settings, "Set it back to automatic, as an administrator."),
    Check("persistence", of_cards.persistence, "nvidia-smi -pm 1, or run nvidia-persistenced."),
    Check("held", _told("held"), "Stop that daemon, or choose other cards with --device."),
    Check("users", of_cards.users, "End these processes: a soak wants the card for itself."),
    Check("torch", of_load.torch, "Install PyTorch's build for this card (README.md)."),
    Check("runtime", of_load.runtime, "Install PyTorch's build for this vendor's cards."),
    Check("triton", of_load.triton, "pip install 'gpu-soak[gpu]'; gfx906 needs Triton 3.8 or newer."),
    Check("C compiler", _told("C compiler"), "Install gcc and Python's headers, or name a compiler in CC."),
    Check("cache folder", _told("cache folder"), "Name a writable folder in TRITON_CACHE_DIR."),
    Check("pairing", of_load.pairing, "Find out which card works: the run would watch another."),
    Check("pcie link", of_load.pcie_link, "Reseat the card, look at riser and BIOS settings."),
    Check("data folder", _told("data folder"), ""),
    Check("database", _told("database"), ""),
    Check("port", _told("port"), ""),
    Check(
        "kernel log",
        _told("kernel log", Level.WARN),
        "Run as root, or in the journal's group (systemd-journal or adm), or give a container CAP_SYSLOG and "
        "/dev/kmsg: it is a witness of what befalls a card.",
    ),
)


def judged(facts: Facts) -> list[Line]:
    """Every check's lines, in the order of the table."""
    return [_with_remedy(check, line) for check in CHECKS for line in check.run(facts)]


def _with_remedy(check: Check, line: Line) -> Line:
    if line.level in (Level.OK, Level.SKIP) or line.remedy:
        return line
    return replace(line, remedy=check.remedy)
