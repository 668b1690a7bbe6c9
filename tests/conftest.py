"""What holds for all tests."""

import signal

from hypothesis import HealthCheck, Phase, settings

# What a shell starts in the background is deaf to Ctrl-C, and so are its children; our tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: A loaded machine is no failure: nothing about the time of an example is checked.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}

# The same examples on every run and machine; `pytest --hypothesis-profile=explore` tries many others.
settings.register_profile("default", derandomize=True, **UNTIMED)
settings.register_profile("explore", derandomize=False, max_examples=1_000, **UNTIMED)
# The same examples again, for whoever only wants to know whether there is a failure (tests/mutations): none is shrunk.
settings.register_profile("hunt", derandomize=True, phases=(Phase.explicit, Phase.generate), **UNTIMED)
