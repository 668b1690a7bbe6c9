"""What is wrong with an operation can be told before anything moves: each side checks its own half.

The caller's half is the pieces; the owner's half is generation, bounds and put_id (`exports`).
"""

from __future__ import annotations

from pykvpool.errors import InvalidArgument, PoolError
from pykvpool.fabric.base import Peer, Read, Write
from pykvpool.memory.copying import total_bytes

#: Offsets and lengths travel as unsigned 64-bit numbers; half of the range keeps their sum in it as well.
MAX_OFFSET = 1 << 62


def refuse_operation(operation: Read | Write, peer: Peer, *, takes_device: bool = False) -> PoolError | None:
    """Why `operation` cannot be tried at all, None if it can. `takes_device`: pieces of GPU memory are welcome."""
    if not (0 <= operation.offset < MAX_OFFSET and 0 <= operation.length < MAX_OFFSET):
        return InvalidArgument(f"offset {operation.offset} and length {operation.length}: out of range")
    for piece in operation.pieces:
        if not piece.c_contiguous or piece.format != "B" or piece.ndim != 1:
            return InvalidArgument("a piece is not a flat view of bytes")
    if operation.device and not takes_device:
        return InvalidArgument("this fabric moves host memory only")
    given = sum(piece.nbytes for piece in operation.device) if operation.device else total_bytes(operation.pieces)
    if given != operation.length:
        return InvalidArgument(f"pieces of {given} bytes for an operation of {operation.length}")
    if isinstance(operation, Write):
        return None if peer.writable else InvalidArgument("a reader may not write")
    if any(piece.readonly for piece in operation.pieces):
        return InvalidArgument("a piece to read into is read-only")
    return None
