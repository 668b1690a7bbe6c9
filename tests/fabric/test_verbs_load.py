"""Which binding is loaded, what is said when there is none, and what is read beside the bindings."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from pykvpool.errors import ConfigError, NotSupported
from pykvpool.fabric.verbs import GidType
from pykvpool.fabric.verbs.event_descriptors import made_with_descriptor, readable
from pykvpool.fabric.verbs.load import BINDINGS, SETTINGS, load
from pykvpool.fabric.verbs.sysfs import gid_entry
from tests.fabric.fake_verbs import FakeVerbs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Say which bindings can be imported; the rest cannot, for a reason of several lines."""
    there: list[str] = []

    def import_module(name: str) -> types.SimpleNamespace:
        binding = name.rpartition(".")[2].removesuffix("_binding")
        if binding not in there:
            raise ImportError(f"No module named {binding!r},\n  it seems")
        verbs = FakeVerbs()
        verbs.name = binding
        return types.SimpleNamespace(binding=lambda: verbs)

    monkeypatch.setattr("pykvpool.fabric.verbs.load.importlib.import_module", import_module)
    return there


def test_the_first_binding_that_is_there_is_taken(installed: list[str]) -> None:
    installed += ["ibverbs"]
    assert load().name == "ibverbs"
    installed += ["pyverbs"]
    assert load().name == "pyverbs"
    assert load("ibverbs").name == "ibverbs", "who asks by name gets what was asked for"


def test_without_a_binding_one_line_says_what_to_install(installed: list[str]) -> None:
    with pytest.raises(NotSupported) as caught:
        load()
    text = str(caught.value)
    assert "\n" not in text
    for part in ("apt-get install python3-pyverbs", "pip install '.[rdma]'", *BINDINGS):
        assert part in text


def test_the_library_is_told_what_it_reads_when_it_is_loaded_and_whoever_said_otherwise_is_left_alone(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed += ["pyverbs"]
    for setting in SETTINGS:
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv(SETTINGS[0], "0")
    load()
    assert [os.environ[setting] for setting in SETTINGS] == ["0", "1"]


def test_a_binding_asked_for_by_name_is_not_replaced_by_another(installed: list[str]) -> None:
    installed += ["ibverbs"]
    with pytest.raises(NotSupported, match="pyverbs: No module"):
        load("pyverbs")
    with pytest.raises(ConfigError, match=r"'verbs'.*pyverbs and ibverbs"):
        load("verbs")


def test_the_seam_itself_imports_no_library() -> None:
    program = "import sys, pykvpool.fabric.verbs, pykvpool.fabric.verbs.load; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    assert not {"pyverbs", "ibverbs"} & {name.partition(".")[0] for name in done.stdout.split()}


def gid_files(root: Path, index: int, kind: str | None, interface: str | None) -> Path:
    attributes = root / "card0" / "ports" / "1" / "gid_attrs"
    for name, text in (("types", kind), ("ndevs", interface)):
        (attributes / name).mkdir(parents=True, exist_ok=True)
        if text is not None:
            (attributes / name / str(index)).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("kind", "infiniband", "expected"),
    [
        ("RoCE v2", False, GidType.ROCE_V2),
        ("IB/RoCE v1", False, GidType.ROCE_V1),
        ("IB/RoCE v1", True, GidType.INFINIBAND),
        ("something new", False, GidType.UNKNOWN),
        (None, True, GidType.INFINIBAND),
        (None, False, GidType.UNKNOWN),
    ],
)
def test_the_kernels_words_for_gid_types(tmp_path: Path, kind: str | None, infiniband: bool, expected: GidType) -> None:
    root = gid_files(tmp_path, 3, kind, "eth0" if kind else None)
    gid = gid_entry("card0", 1, 3, bytes(15) + b"\1", infiniband=infiniband, root=root)
    assert (gid.index, gid.type, gid.interface) == (3, expected, "eth0" if kind else "")


def test_a_descriptor_that_comes_with_an_object_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pykvpool.fabric.verbs.event_descriptors._TARGET", "anon_inode:[eventfd]")
    fd, found = made_with_descriptor(lambda: os.eventfd(0, os.EFD_NONBLOCK))
    try:
        assert found == fd
        assert not readable(fd)
        os.eventfd_write(fd, 1)
        assert readable(fd)
    finally:
        os.close(fd)
