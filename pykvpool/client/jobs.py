"""Arguments of a put or get as jobs: checked here, so that one bad key costs the rest of its batch nothing."""

from __future__ import annotations

from pykvpool.client.reader import Destination, GetJob, Window
from pykvpool.client.types import Key, PutItem
from pykvpool.client.writer import PutJob
from pykvpool.errors import InvalidArgument
from pykvpool.memory.buffers import as_pieces
from pykvpool.model.commands import MAX_REPLICAS
from pykvpool.model.keys import key_bytes, key_text


def check_replicas(replicas: int, min_replicas: int | None) -> None:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise InvalidArgument(f"replicas is {replicas}: 1 to {MAX_REPLICAS} are allowed")
    if min_replicas is not None and not 1 <= min_replicas <= replicas:
        raise InvalidArgument(f"min_replicas is {min_replicas}: 1 to replicas ({replicas}) are allowed")


def put_job(item: PutItem) -> PutJob:
    """A job; one that cannot start carries its error as its result, so that the rest of the batch goes on."""
    try:
        hash_ = key_bytes(item.key)
        parent = None if item.parent is None else key_bytes(item.parent)
        pieces = as_pieces(item.data, writable=False)
        size_bytes = sum(piece.nbytes for piece in pieces)
        if not size_bytes:
            raise InvalidArgument(f"{key_text(hash_)}: the value is empty: an object has at least one byte")
    except InvalidArgument as error:
        return PutJob(b"", 0, (), result=error)
    return PutJob(hash_, size_bytes, pieces, parent)


def get_job(key: Key, destination: Destination, window: Window | None = None) -> GetJob:
    try:
        hash_ = key_bytes(key)
    except InvalidArgument as error:
        return GetJob(b"", repr(key)[:40], destination, result=error)
    return GetJob(hash_, key_text(hash_), destination, window)
