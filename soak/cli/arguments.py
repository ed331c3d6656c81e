"""Positional arguments that `--help` explains."""

from __future__ import annotations

from typing import Any

import click


class Explained(click.Argument):
    """A click argument with a help text: `@click.argument("url", cls=Explained, help="…")`."""

    def __init__(self, *declarations: Any, help: str, **rest: Any) -> None:
        super().__init__(*declarations, **rest)
        self.help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), str(self.help)
