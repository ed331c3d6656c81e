"""Root's rights put off for a while: modes of files mean nothing to root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NOBODY = 10001


@contextmanager
def a_user(groups: tuple[int, ...] = ()) -> Iterator[None]:
    """As a user without a name, in these groups. Anybody but root is such a user already."""
    if os.geteuid() != 0:
        if groups:
            pytest.skip("only root can be in groups at will")
        yield
        return
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)
