"""What the scheduler's side counts, for statistics."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Latencies kept between two collections; a step's worth is a handful.
MAX_SAMPLES = 1000


@dataclass(slots=True)
class Counts:
    """Since the start, except `lookup_seconds`, which whoever collects it empties."""

    #: Answered, with or without a hit.
    lookups: int = 0
    lookup_errors: int = 0
    #: Not answered in time.
    lookup_timeouts: int = 0
    lookup_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    #: Loads ordered, the tokens they spare, and loads that failed.
    loads: int = 0
    load_tokens: int = 0
    load_failures: int = 0
    #: Save jobs ordered, and their blocks.
    saves: int = 0
    save_blocks: int = 0
    #: Blocks not saved because too many were pinned already.
    saves_over_share: int = 0
    #: Blocks of queued saves that a reset fenced.
    saves_fenced: int = 0
    #: Times that missing reports of a save were asked for.
    overdue_saves: int = 0
    #: Requests that bypass the pool because their adapter's content is not known.
    unknown_adapters: int = 0
