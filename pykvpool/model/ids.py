"""Identifiers. Each is its own type, so that mypy refuses a lease where a put_id belongs."""

from __future__ import annotations

from typing import NewType

#: One incarnation of a client or node at the master. Given out by the master, never reused.
SessionId = NewType("SessionId", int)
#: Number of a request within its session, chosen by the client, rising from 1.
RequestId = NewType("RequestId", int)
#: One mount of one segment. Given out by the master, never reused: a remount gets a new one, so a
#: descriptor of an earlier mount can never be mistaken for the present one.
SegmentId = NewType("SegmentId", int)
#: One attempt to write one object. Rises, never reused; doubles as the version of the object.
PutId = NewType("PutId", int)
#: One lease over a batch of objects. Never reused.
LeaseId = NewType("LeaseId", int)
#: Place in the queue of a key that could not be allocated at once. Never reused.
TicketId = NewType("TicketId", int)
#: Interned scope: a small number that stands for a `Scope` in one life of the master.
ScopeId = NewType("ScopeId", int)
#: Name of a node, unique in a cluster; a restarted node of the same name supersedes the old one.
NodeName = NewType("NodeName", str)

#: Random 64-bit number that the owner of a segment draws for each mount; stated in every data request.
Generation = NewType("Generation", int)
