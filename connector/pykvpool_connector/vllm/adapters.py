"""Which LoRA adapter a request's blocks are computed with, by the adapter's content.

vLLM's block hashes carry an adapter's name and path; the files behind them can change, and then the same hash stands
for other bytes. So a scope carries a digest of all the adapter's files. Reading them is I/O, and the question comes on
the engine's thread: a thread of this module reads, the question is answered from memory (promise P9).
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Protocol

from pykvpool.errors import NotReady, NotSupported, PoolError

#: Adapters remembered; beyond, the oldest is read again when it is used.
MAX_ADAPTERS = 4096
#: Read at once: large enough for any disk, small beside an adapter.
_CHUNK_BYTES = 1 << 20


class LoraRequest(Protocol):
    """What is used of vLLM's request."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool


class AdapterDigests:
    """Digests of adapters, read in the background, once for each."""

    def __init__(self) -> None:
        #: Digest, why there is none, or None while it is being read; by (name, id, path).
        self._known: dict[tuple[str, int, str], str | PoolError | None] = {}
        self._lock = threading.Lock()

    def digest(self, lora: LoraRequest | None) -> str:
        """32 hexadecimal digits for an adapter's content; "" without an adapter. Does no I/O.

        Raises:
            NotReady: the adapter is being read; a moment later the answer is there.
            NotSupported: there are no files to read, or they may change under the same name (`load_inplace`).
        """
        if lora is None:
            return ""
        if getattr(lora, "load_inplace", False):
            raise NotSupported(f"the adapter {lora.lora_name!r} is reloaded in place: its content is not known")
        which = (lora.lora_name, lora.lora_int_id, lora.lora_path)
        with self._lock:
            known = self._known.get(which)
            if which not in self._known:
                while len(self._known) >= MAX_ADAPTERS:
                    del self._known[next(iter(self._known))]
                self._known[which] = None
                threading.Thread(target=self._read, args=(which,), name="pykvpool-adapter", daemon=True).start()
        if known is None:
            raise NotReady(f"the adapter {lora.lora_name!r} is being read")
        if isinstance(known, PoolError):
            raise known
        return known

    def _read(self, which: tuple[str, int, str]) -> None:
        name, _, path = which
        found: str | PoolError
        try:
            found = digest_adapter(Path(path))
        except OSError as error:
            found = NotSupported(f"the adapter {name!r} at {path} cannot be read: {error.strerror or error}")
        with self._lock:
            self._known[which] = found


def digest_adapter(path: Path) -> str:
    """Digest of all bytes of an adapter's files, whatever the folder is called. Raises `OSError`."""
    digest = hashlib.sha256(b"pykvpool adapter 1")
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    if not files:
        raise FileNotFoundError(2, "there are no files", str(path))
    for file in files:
        size = file.stat().st_size
        digest.update(f"\0{file.name}\0{size}\0".encode())
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()[:32]
