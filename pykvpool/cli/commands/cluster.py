"""`status` and `top`: the whole pool on one page, once or live."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

import click
import msgspec
from rich.console import Group
from rich.live import Live
from rich.text import Text

from pykvpool.cli import pool_view, screen
from pykvpool.cli.options import POOL_KEYS, Number, configured, open_client
from pykvpool.cli.running import run
from pykvpool.config import Config
from pykvpool.errors import PoolError
from pykvpool.model.replies import State

KEYS = (*POOL_KEYS, "client.timeout_s")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
@configured(*KEYS)
def status(config: Config, as_json: bool) -> None:
    """Show nodes and their space, sessions, and counters."""

    async def ask() -> State:
        async with await open_client(config, role="reader") as client:
            return await client.state()

    state = run(ask)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(pool_view.as_data(state)), indent=2))
    else:
        screen.console().print(pool_view.render(state))


@click.command()
@click.option("--interval", type=Number(0.1, 60), default=1.0, show_default=True, help="Seconds between looks.")
@configured(*KEYS)
def top(config: Config, interval: float) -> None:
    """Show the pool live, with rates. q or Ctrl-C ends it."""

    async def watch() -> None:
        stop = asyncio.Event()
        async with await open_client(config, role="reader") as client:
            state, seen_s = await client.state(), time.monotonic()
            with _keys(stop), _display() as show:
                show(_page(state, None))
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), interval)
                    before, before_s = state, seen_s
                    try:
                        state, seen_s = await client.state(), time.monotonic()
                    except PoolError as error:
                        show(_page(state, None, str(error)))
                        continue
                    show(_page(state, pool_view.rates_between(before, state, seen_s - before_s)))

    with contextlib.suppress(KeyboardInterrupt):
        run(watch)


@contextlib.contextmanager
def _display() -> Iterator[Callable[[Group], None]]:
    """How a page is shown: over the one before, or below it where that cannot be done (a pipe, a dumb terminal)."""
    console = screen.console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield console.print
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda page: live.update(page, refresh=True)


def _page(state: State, rates: dict[str, float] | None, trouble: str = "") -> Group:
    line = Text(f"{trouble}; trying again" if trouble else "q ends", style="red" if trouble else "dim")
    return Group(line, pool_view.render(state, rates))


@contextlib.contextmanager
def _keys(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` when q is pressed, where there is a terminal; its settings are put back."""
    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def pressed() -> None:
        if sys.stdin.read(1).lower() in ("q", ""):
            stop.set()

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
