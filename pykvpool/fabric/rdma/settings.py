"""What the two ends of the rdma fabric can be told, and the numbers that both share."""

from __future__ import annotations

from dataclasses import dataclass

from pykvpool.errors import ConfigError
from pykvpool.fabric.verbs import Verbs

SCHEME = "rdma"
COST = 20
#: Queue pairs from one rail to another. One can fill a link; a second keeps it filled while the first recovers.
DEFAULT_QUEUE_PAIRS = 2
MAX_QUEUE_PAIRS = 16


@dataclass(frozen=True, slots=True)
class RdmaSettings:
    """The same for nodes and clients."""

    #: Devices to use, ``name`` or ``name:port``; empty: every one that is up.
    devices: tuple[str, ...] = ()
    #: Queue pairs per pair of rails.
    queue_pairs: int = DEFAULT_QUEUE_PAIRS
    #: Index in the GID table; None: chosen, and others tried where it does not work.
    gid_index: int | None = None
    #: Name of the binding to use; empty: the first that can be loaded.
    binding: str = ""
    #: The binding itself, in place of a name.
    verbs: Verbs | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.queue_pairs <= MAX_QUEUE_PAIRS:
            raise ConfigError(f"rdma.queue_pairs is {self.queue_pairs}: 1 to {MAX_QUEUE_PAIRS} are allowed")


#: What applies where nothing is said.
DEFAULT_SETTINGS = RdmaSettings()
