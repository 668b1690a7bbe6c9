"""Which command is handled where, and who may send it.

A handler gets (context, session, request id, command) and returns its reply; None if the reply comes from elsewhere,
later or already; or `Work` (see `jobs`) that ends with it. It raises a `PoolError` to refuse the whole command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pykvpool.core.context import Context
from pykvpool.core.handlers import cluster, leasing, lookup, nodes, objects, writing
from pykvpool.core.jobs import Work
from pykvpool.core.sessions import Session
from pykvpool.errors import InvalidArgument
from pykvpool.model import commands
from pykvpool.model.ids import RequestId
from pykvpool.model.replies import Reply

_ANYBODY = ("client", "reader", "node")
_WRITERS = ("client", "node")
_NODES = ("node",)


@dataclass(frozen=True, slots=True)
class Handler:
    handle: Callable[[Context, Session, RequestId, Any], Reply | Work | None]
    #: Roles that may send the command.
    roles: tuple[str, ...] = _ANYBODY

    def check_role(self, session: Session, command: commands.Command) -> None:
        if session.role not in self.roles:
            raise InvalidArgument(
                f"session {session.name!r} is a {session.role}: {type(command).__name__} is for "
                f"{' and '.join(role + 's' for role in self.roles)}",
                role=session.role,
            )


HANDLERS: dict[type, Handler] = {
    commands.Intern: Handler(cluster.intern),
    commands.ClusterState: Handler(cluster.cluster_state),
    commands.Heartbeat: Handler(cluster.heartbeat),
    commands.Goodbye: Handler(cluster.goodbye),
    commands.Exists: Handler(lookup.exists),
    commands.MatchPrefix: Handler(lookup.match_prefix),
    commands.GetReplicas: Handler(lookup.get_replicas),
    commands.Touch: Handler(lookup.touch),
    commands.Stat: Handler(lookup.stat),
    commands.Watch: Handler(cluster.watch),
    commands.Renew: Handler(leasing.renew),
    commands.Release: Handler(leasing.release),
    commands.ListKeys: Handler(objects.list_keys),
    commands.SetPin: Handler(objects.set_pin, _WRITERS),
    commands.Remove: Handler(objects.remove, _WRITERS),
    commands.RemoveAll: Handler(objects.remove_all, _WRITERS),
    commands.PutStart: Handler(writing.put_start, _WRITERS),
    commands.PutWait: Handler(writing.put_wait, _WRITERS),
    commands.PutForget: Handler(writing.put_forget, _WRITERS),
    commands.PutEnd: Handler(writing.put_end, _WRITERS),
    commands.PutRevoke: Handler(writing.put_revoke, _WRITERS),
    commands.Mount: Handler(nodes.mount, _NODES),
    commands.Unmount: Handler(nodes.unmount, _NODES),
    commands.Fenced: Handler(nodes.fenced, _NODES),
    commands.Hashed: Handler(nodes.hashed, _NODES),
}
