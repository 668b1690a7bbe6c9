"""What only nodes say: mount, unmount, fenced, hashed."""

from __future__ import annotations

from pykvpool.core.context import Context
from pykvpool.core.handlers.checks import check_batch, check_column
from pykvpool.core.handlers.writing import MAX_CHECKSUM
from pykvpool.core.hash_requests import HASH_UNITS
from pykvpool.core.jobs import Work
from pykvpool.core.loss import lose_segment
from pykvpool.core.segments import Segment
from pykvpool.core.sessions import Session
from pykvpool.errors import InvalidArgument, NotOwner, SegmentGone
from pykvpool.model.commands import Fenced, Hashed, Mount, Unmount
from pykvpool.model.facts import SegmentMounted
from pykvpool.model.ids import NodeName, RequestId, SegmentId
from pykvpool.model.instructions import DropSegment
from pykvpool.model.replies import Done, Mounted

#: Most addresses under which one segment is offered, and the longest of them, in characters.
MAX_ENDPOINTS = 16
MAX_ENDPOINT_CHARS = 512
#: Largest segment in bytes: what a column of the replica table holds, with room to add to it.
MAX_SEGMENT_BYTES = (1 << 62) - 1


def mount(context: Context, session: Session, request_id: RequestId, command: Mount) -> Mounted:
    state = context.state
    alignment = context.config.alignment_bytes
    if not alignment <= command.size_bytes <= MAX_SEGMENT_BYTES:
        raise InvalidArgument(
            f"a segment of {command.size_bytes} bytes: from {alignment} (one aligned extent) to {MAX_SEGMENT_BYTES}",
            size_bytes=command.size_bytes,
        )
    check_batch("endpoints", command.endpoints, MAX_ENDPOINTS)
    if any(not 0 < len(endpoint) <= MAX_ENDPOINT_CHARS for endpoint in command.endpoints):
        raise InvalidArgument(f"an endpoint has 1 to {MAX_ENDPOINT_CHARS} characters")
    for segment in state.segments.by_id.values():
        if segment.descriptor.generation == command.generation and segment.session == session.id:
            raise InvalidArgument("this generation is mounted already: every mount draws a new one")
    segment_id = SegmentId(state.segments.last_id + 1)
    context.counters["segments_mounted_total"] += 1
    context.emit(
        SegmentMounted(
            segment_id, session.id, NodeName(session.name), command.generation, command.size_bytes, command.endpoints
        )
    )
    return Mounted(segment_id)


def _own_segment(context: Context, session: Session, segment_id: SegmentId) -> Segment | None:
    """The session's segment; None: the master does not know it (any more), and the node is told to drop it."""
    segment = context.state.segments.by_id.get(segment_id)
    if segment is None or segment.going:
        context.instruct(session.id, DropSegment(segment_id))
        return None
    if segment.session != session.id:
        raise NotOwner(f"segment {segment_id} belongs to another node")
    return segment


def unmount(context: Context, session: Session, request_id: RequestId, command: Unmount) -> Done:
    segment = _own_segment(context, session, command.segment)
    if segment is None:
        raise SegmentGone(f"segment {command.segment} is not mounted")
    lose_segment(context, segment, "unmounted")
    return Done()


def fenced(context: Context, session: Session, request_id: RequestId, command: Fenced) -> Work:
    return _take_fence(context, command, _own_segment(context, session, command.segment) is not None)


def _take_fence(context: Context, command: Fenced, mounted: bool) -> Work:
    if mounted:
        yield from context.fences.answered(command.session, command.segment, command.number, context.new_slice())
    return Done()


def hashed(context: Context, session: Session, request_id: RequestId, command: Hashed) -> Work:
    check_batch("puts", command.puts)
    check_column("checksums", command.checksums, command.puts)
    if not all(0 <= checksum <= MAX_CHECKSUM for checksum in command.checksums):
        raise InvalidArgument("a checksum is an unsigned 64-bit number")
    return _take_checksums(context, command, _own_segment(context, session, command.segment) is not None)


def _take_checksums(context: Context, command: Hashed, mounted: bool) -> Work:
    work = context.new_slice()
    for put_id, checksum in zip(command.puts, command.checksums, strict=True):
        if work.is_over:
            yield
        if mounted:
            # Void, put by put, if the segment goes in between.
            context.hash_requests.answered(command.segment, put_id, checksum)
        work.spend(HASH_UNITS)
    return Done()
