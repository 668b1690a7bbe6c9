"""What holds for all tests."""

from hypothesis import HealthCheck, Phase, settings

#: A loaded machine is no failure: nothing about the time of an example is checked.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}

# The same examples on every run and machine; `pytest --hypothesis-profile=explore` tries many others.
settings.register_profile("default", derandomize=True, **UNTIMED)
settings.register_profile("explore", max_examples=1_000, **UNTIMED)
# The same examples again, for whoever only wants to know whether there is a failure (tests/mutations): none is shrunk.
settings.register_profile("hunt", derandomize=True, phases=(Phase.explicit, Phase.generate), **UNTIMED)
