"""What the kernel shows of GIDs under /sys/class/infiniband, for bindings that tell addresses but not types."""

from __future__ import annotations

from pathlib import Path

from pykvpool.fabric.verbs.model import Gid, GidType

SYSFS = Path("/sys/class/infiniband")
#: The kernel's words, lower case.
_TYPES = {"ib/roce v1": GidType.ROCE_V1, "roce v2": GidType.ROCE_V2}


def gid_entry(device: str, port: int, index: int, address: bytes, *, infiniband: bool, root: Path = SYSFS) -> Gid:
    """The entry of that address. `infiniband` says what the kernel's one word for two types means on this link."""
    attributes = root / device / "ports" / str(port) / "gid_attrs"
    kind = _TYPES.get(_read(attributes / "types" / str(index)).lower(), GidType.UNKNOWN)
    if infiniband and kind in (GidType.ROCE_V1, GidType.UNKNOWN):
        kind = GidType.INFINIBAND
    return Gid(index, address, kind, _read(attributes / "ndevs" / str(index)))


def _read(path: Path) -> str:
    """Empty where there is nothing to read: the kernel answers EINVAL for an entry that went away, or whose interface
    is in another network namespace."""
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""
