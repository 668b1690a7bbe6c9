"""Who may be closed when: the lifetimes of verbs objects, alike for every binding.

Libraries differ: one closes children with their parent, one refuses, one leaves a dangling handle. Here each object
knows its parents and counts its children: closing one that still has children raises, closing twice is harmless, and
an object counts as closed only when the library has really let go of it, or the kernel says that its device is gone.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod

from pykvpool.fabric.verbs.protocol import VerbsError

#: What calls on a device say whose driver is gone: its objects were destroyed with it.
GONE = (errno.EIO, errno.ENODEV)


class Handle(ABC):
    """Base of a binding's objects. A subclass says in `_destroy` how the library is told."""

    def __init__(self, device: str, *parents: Handle) -> None:
        #: Name of the device, for messages.
        self.device = device
        self.closed = False
        #: Open objects that were made from this one.
        self.children = 0
        self._parents = parents
        for parent in parents:
            parent.children += 1

    @abstractmethod
    def _destroy(self) -> None:
        """Raises `VerbsError` where the library refuses; the object then stays open."""

    def close(self) -> None:
        if self.closed:
            return
        if self.children:
            raise VerbsError(
                f"close {type(self).__name__}", self.device, errno.EBUSY, f"{self.children} objects of it are open"
            )
        try:
            self._destroy()
        except VerbsError as error:
            if error.errno in GONE:
                self._gone()
            raise
        self._gone()

    def _gone(self) -> None:
        self.closed = True
        for parent in self._parents:
            parent.children -= 1
