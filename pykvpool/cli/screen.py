"""Consoles for tables: as wide as the terminal, and of a fixed width where the output goes into a file or a pipe."""

from __future__ import annotations

from rich.console import Console

#: Width of tables that no terminal shows: wide enough for every table here not to wrap.
PIPE_WIDTH = 132


def console(markup: bool = False) -> Console:
    """Standard output. `markup`: brackets in text are styles; never where keys or names of the pool are shown."""
    screen = Console(highlight=False, markup=markup, emoji=markup)
    return screen if screen.is_terminal else Console(highlight=False, markup=markup, emoji=markup, width=PIPE_WIDTH)
