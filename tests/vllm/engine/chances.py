"""How often things go wrong in a made-up world."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chances:
    """How often things go wrong, per occasion."""

    #: A lookup's answer comes now.
    answer: float = 0.5
    #: A lookup is never answered, or with an error.
    no_answer: float = 0.05
    lookup_error: float = 0.05
    #: A hold lapses, in each step.
    lapse: float = 0.02
    #: A stored block is forgotten, in each step.
    forget: float = 0.001
    #: A job under way on a rank ends now.
    progress: float = 0.4
    #: A save is dropped, a load fails though everything is there, a save's report gets lost.
    drop: float = 0.03
    load_failure: float = 0.1
    lose_report: float = 0.03
    #: A connector beside ours offers to load something; it fails as often as ours.
    neighbour: float = 0.4
    #: A request is aborted, in each step.
    abort: float = 0.02
    #: Everything is reset, in each step.
    reset: float = 0.01


CALM = Chances(1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0)
