"""May a node have its name? The master gives a name to whoever comes last, so that a restarted node comes back at once;
a person who starts a second node of one name by mistake would destroy what the first one holds, so the command asks.

Two nodes that start in the same moment both find the name free; then the master's rule decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykvpool.cli import format as say
from pykvpool.errors import ConfigError, ProtocolError
from pykvpool.model.commands import ClusterState
from pykvpool.model.replies import State
from pykvpool.node import NodeSettings
from pykvpool.runtime import Runtime
from pykvpool.transport.control import ControlSession


async def check_name_is_free(settings: NodeSettings, runtime: Runtime) -> None:
    """Raises `ConfigError` where a node that is connected to the master now has that name; else as connecting does."""
    async with _asking(settings, runtime) as session:
        state = await session.call(ClusterState(), settings.connect_timeout_s)
        if not isinstance(state, State):
            raise ProtocolError(f"the master answered a question for its state with {type(state).__name__}")
        check_name_in(state, settings.name, session.ttl_ms)


async def check_master_answers(settings: NodeSettings, runtime: Runtime) -> None:
    """The same for a name that is taken in any case: raises as connecting does."""
    async with _asking(settings, runtime):
        pass


@asynccontextmanager
async def _asking(settings: NodeSettings, runtime: Runtime) -> AsyncIterator[ControlSession]:
    session = await ControlSession.connect(
        list(settings.master),
        name=f"before-node-{runtime.new_incarnation():016x}",
        role="reader",
        runtime=runtime,
        token=settings.token,
        cluster=settings.cluster,
        connect_timeout_s=settings.connect_timeout_s,
    )
    try:
        yield session
    finally:
        await session.close()


def check_name_in(state: State, name: str, ttl_ms: int) -> None:
    """The same for a state at hand. One whose connection is gone (killed, cut) is no reason to refuse.

    Args:
        ttl_ms: after so long without a sign of life the master gives a session up.
    """
    if not any(each.role == "node" and each.name == name and each.connected for each in state.sessions):
        return
    segments = [segment for segment in state.segments if segment.node == name]
    lends = ", ".join(
        f"{say.size(segment.capacity_bytes)} over {say.endpoints(segment.endpoints)}" for segment in segments
    )
    raise ConfigError(
        f"a node named {name!r} is connected already and lends {lends or 'nothing yet'}: name this one with --name, "
        f"or take the name over with --replace (what that node holds is then lost). Where its host has just died, the "
        f"name is free after {ttl_ms / 1000:g} s",
        name=name,
    )
