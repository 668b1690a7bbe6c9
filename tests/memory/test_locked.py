"""What may be locked, as the kernel says: limits, what is in use, and who they do not count for."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from pykvpool.memory.locked import LockedMemory, locked_memory, may_lock_any

MIB = 1 << 20
ROOTS = "         0          0 4294967295\n"
PRIVILEGED, PLAIN = "0000000000004000", "00000000a80425fb"


def process(root: Path, capabilities: str = PLAIN, pinned_kib: int = 0, ids: str = ROOTS) -> Path:
    (root / "self").mkdir(exist_ok=True)
    (root / "self" / "status").write_text(f"Name:\tpython\nVmPin:\t{pinned_kib:8} kB\nCapEff:\t{capabilities}\n")
    (root / "self" / "uid_map").write_text(ids)
    return root


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (8 * MIB, 8 * MIB))


def test_what_is_pinned_already_counts(tmp_path: Path) -> None:
    assert locked_memory(process(tmp_path, pinned_kib=1024)) == LockedMemory(8 * MIB, MIB)


def test_a_shortage_is_one_line_with_both_numbers_and_the_fix() -> None:
    locked = LockedMemory(8 * MIB, MIB)
    assert locked.shortage(7 * MIB) == ""
    line = locked.shortage(7 * MIB + 1)
    assert line.startswith("the limit on locked memory is 8388608 bytes, 1048576 of them in use: raise it: 'ulimit -l")
    assert "\n" not in line


def test_without_a_limit_nothing_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY,) * 2)
    assert locked_memory(process(tmp_path)).shortage(1 << 60) == ""


def test_who_has_the_capability_may_lock_any_amount(tmp_path: Path) -> None:
    assert locked_memory(process(tmp_path, PRIVILEGED)).shortage(1 << 60) == ""


def test_a_capability_within_a_namespace_of_users_does_not_count(tmp_path: Path) -> None:
    """Root of a rootless container: the kernel asks whether the host would let it."""
    process(tmp_path, PRIVILEGED, ids="         0       1000          1\n         1     100000      65536\n")
    assert not may_lock_any(tmp_path)
    assert locked_memory(tmp_path).limit_bytes == 8 * MIB


@pytest.mark.parametrize("text", ["", "CapEff:\n", "CapEff: nonsense\n", "VmPin: much\nCapEff:\t0\n"])
def test_a_proc_that_says_nothing_is_no_privilege(tmp_path: Path, text: str) -> None:
    process(tmp_path)
    (tmp_path / "self" / "status").write_text(text)
    assert locked_memory(tmp_path) == LockedMemory(8 * MIB, 0)
    assert locked_memory(tmp_path / "nowhere") == LockedMemory(8 * MIB, 0)
