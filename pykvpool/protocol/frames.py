"""Frames: where one message ends and the next begins.

A frame is its length as four little-endian bytes, then that many bytes (one msgpack value; see `messages`). This file
knows lengths and limits and nothing of what is inside. It does no I/O: a transport feeds what arrived, in whatever
pieces the network made of it, and gets whole frames back.

A length over the limit is refused when its four bytes are seen, before a byte of the body is kept: otherwise four
bytes of garbage ("GET " is half a gigabyte) would make the receiver buffer until it dies.
"""

from __future__ import annotations

from struct import Struct

from pykvpool.errors import LimitExceeded, ProtocolError

#: The length in front of each frame: unsigned, little endian.
HEADER = Struct("<I")

#: Longest frame. The largest honest one is a put_start of 16,384 keys of 1 KiB that name 16,384 parents of 1 KiB:
#: 2 x 16,384 x 1,027 bytes + sizes = 34 MB. The next round number above.
MAX_FRAME_BYTES = 40 << 20

#: Longest frame before the peer is known: a hello has three names of at most 256 bytes and a nonce. A stranger can make
#: a master buffer this much, no more.
MAX_HANDSHAKE_FRAME_BYTES = 4 << 10


def frame_header(size_bytes: int, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The four bytes in front of a frame of `size_bytes`. Raises `LimitExceeded` where the peer would refuse it."""
    if size_bytes > limit_bytes:
        raise LimitExceeded(
            f"a message of {size_bytes:,} bytes is over the limit of {limit_bytes:,} bytes for one frame: "
            "ask for fewer keys at once",
            size_bytes=size_bytes,
            limit_bytes=limit_bytes,
        )
    return HEADER.pack(size_bytes)


class FrameDecoder:
    """Cuts a byte stream into frames, however it was fragmented.

    Once the stream is broken it stays so: where the next frame would begin cannot be known.
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        #: Longest frame accepted; raised once the peer has passed the handshake.
        self.limit_bytes = limit_bytes
        #: Why the stream is broken; None while it is whole.
        self.failure: ProtocolError | None = None
        #: What arrived and is not part of a returned frame yet: less than one frame and its header, never more.
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished frame (0: the stream may end here)."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Whole frames that `data` completes, oldest first.

        An announced length over the limit sets `failure`; the frames before it are still returned, so what is
        delivered never depends on where the network cut. Nothing is taken after a failure.
        """
        if self.failure is not None:
            return []
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        start, available = 0, len(buffer)
        while available - start >= HEADER.size:
            (size,) = HEADER.unpack_from(buffer, start)
            if size > self.limit_bytes:
                opening = bytes(buffer[start : start + 16])
                self.failure = ProtocolError(
                    f"the peer announces a frame of {size:,} bytes, over the limit of {self.limit_bytes:,}; "
                    f"it began with {opening!r}: that is not this protocol, or a batch that is too large",
                    size_bytes=size,
                    limit_bytes=self.limit_bytes,
                )
                buffer.clear()
                return frames
            end = start + HEADER.size + size
            if end > available:
                break
            frames.append(bytes(memoryview(buffer)[start + HEADER.size : end]))
            start = end
        if start:
            del buffer[:start]
        return frames

    def end(self) -> None:
        """The stream ended. Inside a frame that is a failure."""
        if self.failure is None and self._buffer:
            self.failure = ProtocolError(f"the connection ended inside a frame, after {len(self._buffer)} bytes of it")
