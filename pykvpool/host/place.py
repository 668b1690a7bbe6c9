"""Chooses where an engine's process does its pool I/O: in the host's node where one runs, else in its own thread."""

from __future__ import annotations

import logging

from pykvpool.host.access import PoolAccess
from pykvpool.host.agent.port import AgentPort
from pykvpool.host.embedded import EmbeddedPort
from pykvpool.host.port import PoolPort
from pykvpool.node.socket_files import engine_sockets, shm_dirs

log = logging.getLogger("pykvpool.host")

#: How long the start of an engine's process may wait for a node that is there to take it in (s).
ATTACH_S = 10.0


def node_port(access: PoolAccess, socket: str = "") -> AgentPort:
    """In a node of this host, whichever pool it is of; one that does not run yet is looked for again and again.

    `socket`: of the node; empty: wherever one of this user is.
    """
    port = AgentPort(
        access.name, socket=socket, cluster=access.cluster, token=access.token, replicas=access.replicas,
        absent=_absent(access, socket),
    )  # fmt: skip
    port.wait_attached(ATTACH_S)
    return port


def any_port(access: PoolAccess) -> PoolPort:
    """In a node of this host and of this pool, where one runs now; else in a thread of this process."""
    if engine_sockets():
        port = AgentPort(
            access.name, masters=access.masters, cluster=access.cluster, token=access.token, replicas=access.replicas,
            absent=_absent(access),
        )  # fmt: skip
        if port.wait_attached(ATTACH_S):
            return port
        port.close(0.0)
        log.info("no node of this host serves the pool at %s: %s does its own I/O", access.where, access.name)
    return EmbeddedPort(access)


def _absent(access: PoolAccess, socket: str = "") -> str:
    """No node listens: what that means, and what to do about it."""
    command = f"pykvpool node --master {','.join(access.masters)}"
    if socket:
        return f"no `pykvpool node` listens at {socket}: start one there (`{command} --engine-socket {socket}`)"
    places = " or ".join(map(str, shm_dirs()))
    return f"no `pykvpool node` of this user runs on this host (looked in {places}): start one (`{command}`)"
