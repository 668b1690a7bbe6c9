"""How many examples a property gets: few by default, so that the whole folder takes well under a minute on one core.

``pytest --hypothesis-profile=explore tests/properties`` tries many others, twenty times as many.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

#: By how much more the profile "explore" tries.
EXPLORE_FACTOR = 20
#: A machine of many rules throws few of its steps away, and is slow to begin with: neither says anything about it.
_TOLERATED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def budget(examples: int, steps: int = 40) -> settings:
    """Settings for a property, or for a machine that takes `steps` steps in each example."""
    explores = not settings().derandomize
    return settings(
        max_examples=examples * (EXPLORE_FACTOR if explores else 1),
        stateful_step_count=steps,
        suppress_health_check=_TOLERATED,
    )
