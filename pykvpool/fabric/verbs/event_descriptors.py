"""The file descriptors through which devices tell what happened.

Some bindings do not show them: pyverbs 44 gives out neither the one of a completion channel nor that of a context's
events. The kernel names both ``anon_inode:[infinibandevent]``, so the one that appeared while the object was made is
the one.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pykvpool.errors import invariant

T = TypeVar("T")
_TARGET = "anon_inode:[infinibandevent]"
_DESCRIPTORS = Path("/proc/self/fd")
#: Two threads that look at once would see each other's.
_lock = threading.Lock()


def readable(fd: int) -> bool:
    """Whether a read would find something now."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def made_with_descriptor(make: Callable[[], T]) -> tuple[T, int]:
    """What `make` made, and the event descriptor that came with it."""
    with _lock:
        before = _event_descriptors()
        made = make()
        new = _event_descriptors() - before
    invariant(len(new) == 1, f"one event descriptor comes with one object, not {sorted(new)}")
    return made, new.pop()


def _event_descriptors() -> set[int]:
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        try:
            if str(entry.readlink()) == _TARGET:
                found.add(int(entry.name))
        except OSError:
            continue  # closed meanwhile, as the one that lists this directory
    return found
