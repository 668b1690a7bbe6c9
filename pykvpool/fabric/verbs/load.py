"""Which binding: the one that is asked for, or the first that can be loaded. Nothing is imported before that.

libibverbs reads its settings from the environment, when it is loaded; who has set them otherwise is left alone.
"""

from __future__ import annotations

import importlib
import os
from typing import cast

from pykvpool.errors import ConfigError, NotSupported
from pykvpool.fabric.verbs.protocol import Verbs

#: In the order they are tried: Debian's and the vendors' own first, then the one from PyPI.
BINDINGS = ("pyverbs", "ibverbs")
#: What a binding says that does not tell its version, as Debian's pyverbs.
UNKNOWN_VERSION = "unknown"
INSTALL = (
    "apt-get install python3-pyverbs (for the system's Python), "
    "or apt-get install libibverbs1 ibverbs-providers and pip install '.[rdma]' in a clone of pykvpool"
)
#: Set where nothing else is. Memory that a card knows stays where it is when the process forks (newer kernels see to
#: that themselves); and what was on a device that has vanished may be closed like anything else.
SETTINGS = ("RDMAV_FORK_SAFE", "RDMAV_ALLOW_DISASSOCIATE_DESTROY")


def load(name: str = "") -> Verbs:
    """The binding of that name; by default the first of `BINDINGS` that is there.

    Raises:
        ConfigError: there is no such binding.
        NotSupported: it (or none of them) can be loaded; the message, one line, says why and what to install.
    """
    if name and name not in BINDINGS:
        raise ConfigError(f"no verbs binding is called {name!r}: there are {' and '.join(BINDINGS)}")
    for setting in SETTINGS:
        os.environ.setdefault(setting, "1")
    reasons = []
    for binding in (name,) if name else BINDINGS:
        try:
            module = importlib.import_module(f"pykvpool.fabric.verbs.{binding}_binding")
        except ImportError as error:
            reasons.append(f"{binding}: {_one_line(error)}")
        else:
            return cast(Verbs, module.binding())
    raise NotSupported(f"rdma needs a verbs binding: {INSTALL} ({'; '.join(reasons)})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
