"""Lets what the pool has to say appear where vLLM's own log goes, at vLLM's level.

vLLM sets up its own logger and leaves all others alone, so that a library's notes would be lost and its warnings bare.
A program that has set up our loggers by itself keeps what it set up.
"""

from __future__ import annotations

import logging

#: Of the pool, and of its connectors.
OURS = ("pykvpool", "pykvpool_connector")


def join_log(name: str = "vllm") -> None:
    """Send our records to the handlers of the logger `name`. Harmless twice, and without such handlers."""
    theirs = logging.getLogger(name)
    for each in OURS:
        ours = logging.getLogger(each)
        if ours.handlers or not theirs.handlers:
            continue
        ours.handlers = theirs.handlers
        ours.setLevel(theirs.level)
        ours.propagate = theirs.propagate
