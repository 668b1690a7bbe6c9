"""A server that is started before its master waits for it, as one that runs does when its master goes away.

Whoever starts a master and a node together cannot know which of them is first. Only silence is waited out: a master
that answers and refuses (token, cluster, version, a name that is taken) ends the start at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import click

from pykvpool.errors import Unavailable

#: Pauses between two tries, the last one again and again (s).
PAUSES_S = (0.1, 0.2, 0.5, 1.0)


async def until_answered(masters: Sequence[str], attempt: Callable[[], Awaitable[None]]) -> None:
    """Await `attempt()` until it no longer raises `Unavailable`, without end; says so once. Raises all else."""
    for tries in itertools.count():
        try:
            await attempt()
            return
        except Unavailable:
            if not tries:
                where = " or ".join(masters)
                click.echo(f"pykvpool: waiting for the master at {where}: start it with `pykvpool master`", err=True)
            await asyncio.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
