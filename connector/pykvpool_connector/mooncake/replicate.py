"""`ReplicateConfig`: how a put is stored, in Mooncake's words, and what that means for the pool."""

from __future__ import annotations

from dataclasses import dataclass, field

from pykvpool.errors import InvalidArgument, NotSupported
from pykvpool.model.objects import Pin
from pykvpool_connector.mooncake.checks import integer
from pykvpool_connector.mooncake.enums import ObjectDataType, SoftPinAction


@dataclass(slots=True)
class ReplicateConfig:
    """Options of a put. Attributes are set one by one, as with Mooncake's."""

    #: Copies, on distinct nodes. More than there are nodes is refused with a code, never stored with fewer in silence.
    replica_num: int = 1
    #: Copies on NVMe-oF devices: not offered, anything but 0 is refused.
    nof_replica_num: int = 0
    #: Copies in a distributed file system: not offered, anything but 0 is refused.
    dfs_replica_num: int = 0
    #: What a put does to the soft pin; ENABLE lasts for `soft_pin_ttl_ms`.
    soft_pin_action: SoftPinAction = SoftPinAction.PRESERVE
    #: Milliseconds until the soft pin is taken off. None: it stays.
    soft_pin_ttl_ms: int | None = None
    #: The older way to say ENABLE.
    with_soft_pin: bool = False
    #: Never evicted.
    with_hard_pin: bool = False
    #: Name of the node (its hostname) that should hold the first copy.
    preferred_segment: str = ""
    #: The newer way to say so; the first one counts.
    preferred_segments: list[str] = field(default_factory=list)
    #: Preferred NVMe-oF devices: not offered.
    preferred_nof_segments: list[str] = field(default_factory=list)
    #: Prefer this process's own segment.
    prefer_alloc_in_same_node: bool = False
    #: One group per key of the batch. Taken and not used: blocks are evicted by recency and by chain.
    group_ids: list[str] | None = None
    data_type: ObjectDataType = ObjectDataType.UNKNOWN

    def __str__(self) -> str:
        return (
            f"ReplicateConfig: {{ replica_num: {self.replica_num}, soft_pin_action: {self.soft_pin_action.name}, "
            f"soft_pin_ttl_ms: {self.soft_pin_ttl_ms}, with_soft_pin: {self.with_soft_pin}, "
            f"with_hard_pin: {self.with_hard_pin}, preferred_segments: {self._preferred()}, "
            f"prefer_alloc_in_same_node: {self.prefer_alloc_in_same_node}, data_type: {self.data_type.name} }}"
        )

    def _preferred(self) -> list[str]:
        return [*self.preferred_segments, *([self.preferred_segment] if self.preferred_segment else [])]

    def wish(self, keys: int, own_node: str) -> PutWish:
        """What the pool is asked for, for a batch of `keys`.

        Args:
            own_node: name of this process's node, "" where it lends nothing.

        Raises:
            NotSupported: a tier that the pool does not have.
            InvalidArgument: fewer than one copy, or group ids that are not one per key.
        """
        if self.nof_replica_num or self.dfs_replica_num or self.preferred_nof_segments:
            raise NotSupported("nof_replica_num and dfs_replica_num: the pool keeps copies in memory only")
        if self.group_ids is not None and len(self.group_ids) != keys:
            raise InvalidArgument(
                f"group_ids has {len(self.group_ids)} entries for {keys} keys: one for each is needed"
            )
        preferred = self._preferred() or ([own_node] if self.prefer_alloc_in_same_node else [])
        soft = self.with_soft_pin or self.soft_pin_action == SoftPinAction.ENABLE
        ttl_ms = self.soft_pin_ttl_ms if soft and not self.with_hard_pin else None
        return PutWish(
            replicas=integer("replica_num", self.replica_num),
            preferred_node=preferred[0] if preferred else "",
            pin=Pin.HARD if self.with_hard_pin else Pin.SOFT if soft else Pin.NONE,
            soft_ttl_ms=None if ttl_ms is None else max(0, integer("soft_pin_ttl_ms", ttl_ms)),
        )


@dataclass(frozen=True, slots=True)
class PutWish:
    """A `ReplicateConfig` in the pool's words."""

    replicas: int = 1
    preferred_node: str = ""
    pin: Pin = Pin.NONE
    #: Milliseconds until a soft pin is taken off, None: never.
    soft_ttl_ms: int | None = None
