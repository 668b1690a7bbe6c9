"""What a check says: a sentence, how bad it is, and what to type about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.StrEnum):
    OK = "ok"
    #: It is not there, and nobody asked for it.
    ABSENT = "n/a"
    #: It works worse than it could, or something that was not asked for cannot work.
    WARN = "warn"
    #: Something that the configuration asks for cannot work.
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    #: Name of the check, for programs: ``rdma.port``.
    check: str
    status: Status
    #: One sentence; names what it is about.
    message: str
    #: A command or an edit that helps, "" where nothing has to be done.
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """Makes the findings of one check, so that each says only what it is about."""

    name: str

    def ok(self, message: str, fix: str = "") -> Finding:
        """`fix`: what to do for those who want more."""
        return Finding(self.name, Status.OK, message, fix)

    def warn(self, message: str, fix: str) -> Finding:
        return Finding(self.name, Status.WARN, message, fix)

    def bad(self, message: str, fix: str) -> Finding:
        return Finding(self.name, Status.BAD, message, fix)

    def missing(self, message: str, fix: str, *, wanted: bool) -> Finding:
        """Something that cannot work: bad where it is wanted, else merely so."""
        return Finding(self.name, Status.BAD if wanted else Status.ABSENT, message, fix)

    def broken(self, message: str, fix: str, *, wanted: bool) -> Finding:
        """Something that is there and does not work: bad where it is wanted, else a warning."""
        return self.bad(message, fix) if wanted else self.warn(message, fix)
