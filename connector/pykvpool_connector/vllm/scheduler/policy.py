"""What the scheduler's side is told to do, as plain numbers: the part of the settings that it needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """How one engine uses the pool."""

    #: Look up and load (roles consumer and both).
    loads: bool = True
    #: Save (roles producer and both).
    saves: bool = True
    #: Save blocks that hold generated tokens, too: the next turn of a conversation begins with them.
    save_decode_cache: bool = True
    #: A hit that spares fewer tokens than this is not taken: computing them is faster than a round trip.
    min_load_tokens: int = 1
    #: After this a request no longer waits for its lookup.
    lookup_timeout_ms: int = 1_000
    #: What the workers give a save; beyond it (and some grace) its missing reports are asked for.
    save_timeout_ms: int = 30_000
    #: Most of the engine's blocks that saves may keep from being given out again.
    max_pinned_ratio: float = 0.25
    #: Longest time that `reset_cache` holds the engine.
    reset_timeout_s: float = 5.0
    #: Longest time that a shutdown waits for saves.
    drain_s: float = 5.0
