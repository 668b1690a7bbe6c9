"""A port's GID table as the kernel shows it under /sys/class/infiniband, for bindings that do not tell GID types."""

from __future__ import annotations

from pathlib import Path

from pykvpool.fabric.verbs.model import GID_BYTES, Gid, GidType

SYSFS = Path("/sys/class/infiniband")
#: The kernel's words, lower case.
_TYPES = {"ib/roce v1": GidType.ROCE_V1, "roce v2": GidType.ROCE_V2}


def gid_table(device: str, port: int, *, infiniband: bool, root: Path = SYSFS) -> tuple[Gid, ...]:
    """Entries in use, by index. `infiniband` says what the kernel's one word for two types means on this link."""
    base = root / device / "ports" / str(port)
    indexes = sorted(int(path.name) for path in (base / "gids").iterdir() if path.name.isdigit())
    entries = (_entry(base, index, infiniband) for index in indexes)
    return tuple(entry for entry in entries if entry is not None)


def _entry(base: Path, index: int, infiniband: bool) -> Gid | None:
    address = bytes.fromhex(_read(base / "gids" / str(index)).replace(":", ""))
    if len(address) != GID_BYTES or not any(address):
        return None
    kind = _TYPES.get(_read(base / "gid_attrs" / "types" / str(index)).lower(), GidType.UNKNOWN)
    if infiniband and kind in (GidType.ROCE_V1, GidType.UNKNOWN):
        kind = GidType.INFINIBAND
    return Gid(index, address, kind, _read(base / "gid_attrs" / "ndevs" / str(index)))


def _read(path: Path) -> str:
    """Empty where there is nothing to read: the kernel answers EINVAL for attributes of an unused entry."""
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""
