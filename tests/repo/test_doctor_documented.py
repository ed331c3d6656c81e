"""docs/doctor.md names every check, in the order of the list."""

from __future__ import annotations

import re
from pathlib import Path

from soak.doctor.checks import CHECKS

TEXT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_every_check_is_in_the_table_in_its_order() -> None:
    named = re.findall(r"^\| ([^|]+?) \|", TEXT, re.MULTILINE)
    assert named[1:] == [check.name for check in CHECKS]
