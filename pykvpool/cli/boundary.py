"""Where errors end: one line for people, one for what to do next, and an exit code; never a traceback.

Exit codes: 1 for an error of the pool, a file or a bug, 2 for wrong usage (click's), 130 when interrupted by Ctrl-C,
143 when told to stop by SIGTERM. `--debug` (of `pykvpool` or of any command) shows the traceback first.
"""

from __future__ import annotations

import traceback
from typing import Any

import click

from pykvpool.errors import (
    ChecksumMismatch,
    Closed,
    ConfigError,
    DeadlineExceeded,
    GpuFailed,
    InternalError,
    InvalidArgument,
    KeyConflict,
    KeyNotFound,
    Leased,
    LeaseExpired,
    LimitExceeded,
    NotReady,
    NotSupported,
    Overloaded,
    PoolError,
    PoolFull,
    ProtocolError,
    Refused,
    SegmentGone,
    SessionExpired,
    TooFewNodes,
    TransferFailed,
    Unavailable,
)

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

#: What to do next, by kind. Kinds whose message already says it (what is allowed, which key) have none.
NEXT: dict[type[PoolError], str] = {
    InternalError: "this is a bug in pykvpool: run again with --debug and report what it shows",
    ConfigError: "pykvpool config --show lists every value and where it is from",
    LimitExceeded: "split it, or use more and smaller objects",
    KeyNotFound: "pykvpool ls lists the keys of a namespace",
    KeyConflict: "remove the key first (pykvpool rm KEY), or use another one",
    NotReady: "another client is writing it: try again in a moment",
    Leased: "somebody reads it: try again in a moment, or use --force",
    LeaseExpired: "the transfer took longer than its lease: try again",
    PoolFull: "try again, remove objects (pykvpool rm), or start another node (pykvpool node)",
    TooFewNodes: "start another node (pykvpool node), or ask for fewer --replicas",
    SegmentGone: "its node is gone: try again, the other replicas will serve",
    SessionExpired: "try again; if it repeats, look whether two processes run under one --name",
    Unavailable: "start a master (pykvpool master), or name the right one with --master or PYKVPOOL_MASTER",
    DeadlineExceeded: "try again, or allow more time with --timeout-s",
    Refused: "compare --cluster, --token and the versions (pykvpool version) at both ends",
    ProtocolError: "is this the address of a pykvpool master? Compare the versions at both ends",
    TransferFailed: "pykvpool status shows which nodes live; --fabric tcp tries the plainest way",
    ChecksumMismatch: "the bytes were discarded: try again; if it repeats, suspect the memory of that node",
    GpuFailed: "pykvpool doctor says what works here; an error that repeats needs a new process, or nvidia-smi",
    Overloaded: "try again in a moment, with fewer requests at once",
    Closed: "connect again",
}


#: Where a configuration itself is wrong `config --show` would only say the same again.
UNREADABLE = "correct it there: docs/configuration.md lists every key and what it allows"
#: What such an error has.
_OF_A_CONFIGURATION = frozenset(("file", "key", "source"))


class ChildFailed(Unavailable):
    """A process that this command started failed; the message quotes it."""


NEXT[ChildFailed] = "that is a process this command started itself: try again, and report what it said if it repeats"


class Terminated(KeyboardInterrupt):
    """SIGTERM: everything was cleaned up, the process ends. A KeyboardInterrupt, for it must pass through all else."""


def next_step(error: PoolError) -> str:
    """What to do about `error`, or "" where its message says it all."""
    if type(error) in (InvalidArgument, NotSupported):
        return ""
    if isinstance(error, ConfigError) and error.fields.keys() & _OF_A_CONFIGURATION:
        return UNREADABLE
    return next((NEXT[kind] for kind in type(error).__mro__ if kind in NEXT), "")


class Boundary(click.Group):
    """A group that turns whatever a command raises into lines on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PoolError as error:
            _complain(ctx, f"{error.kind}: {error}", next_step(error))
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except OSError as error:
            name = f"{error.filename}: " if error.filename is not None else ""
            _complain(ctx, f"{name}{error.strerror or error}", "")
        except Terminated:
            ctx.exit(EXIT_TERMINATED)
        except KeyboardInterrupt:
            click.echo("pykvpool: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except Exception as error:  # noqa: BLE001 - the last stop: a bug, said in one line, shown whole with --debug
            _complain(ctx, f"{type(error).__name__}: {error}", NEXT[InternalError])
        raise click.exceptions.Exit(EXIT_ERROR)


def _complain(ctx: click.Context, message: str, hint: str) -> None:
    root = ctx.find_root()
    if root.params.get("debug") or root.ensure_object(dict).get("debug"):
        click.echo(traceback.format_exc(), err=True, nl=False)
    click.echo(f"pykvpool: {message}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)
