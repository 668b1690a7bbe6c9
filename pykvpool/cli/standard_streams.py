"""Standard input, output and error that were closed (``>&-``, some supervisors) are opened again, as ones that fail.

Python has None in their place, and the next file or socket would get their number: what is written to standard output
would go there. So each gets /dev/null, but opened the wrong way round: who uses it is told "Bad file descriptor", and
who does not need it never notices. Only what is said on standard error is dropped.
"""

from __future__ import annotations

import io
import os
import sys


def reopen_closed() -> None:
    """Before anything else is opened."""
    for descriptor, name, opened, mode in (
        (0, "stdin", os.O_WRONLY, "r"),
        (1, "stdout", os.O_RDONLY, "w"),
        (2, "stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            _open_as(descriptor, opened)
            # Unbuffered: nothing is left that the interpreter would complain about when it ends.
            raw = io.FileIO(descriptor, mode, closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))


def _open_as(descriptor: int, flags: int) -> None:
    found = os.open(os.devnull, flags)
    if found != descriptor:
        os.dup2(found, descriptor, inheritable=True)
        os.close(found)
