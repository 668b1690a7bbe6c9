"""Where a machine cannot have the guest of `make test-rdma`, that is said in one line and is no failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

GUEST = Path(__file__).parents[1] / "rdma" / "guest"
#: Programs that any machine has.
TOOLS = ("bash", "cat", "dirname", "grep", "id", "mktemp", "rm", "tail", "uname", "env")


@pytest.fixture
def machine(tmp_path: Path):
    """Run `guest/run` on a machine with no other programs than these and some stubs."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / tool).symlink_to(found)

    def run(**stubs: str) -> subprocess.CompletedProcess[str]:
        for name, body in stubs.items():
            stub = tmp_path / name.replace("_", "-")
            stub.unlink(missing_ok=True)
            stub.write_text(f"#!{tmp_path / 'bash'}\n{body}\n")
            stub.chmod(0o755)
        return subprocess.run(
            [GUEST / "run", "true"],
            env={"PATH": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    return run


def test_without_apt_there_is_no_guest(machine) -> None:
    done = machine(uname="echo x86_64")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith("RDMA guest: not on this machine:")
    assert "apt-get" in line


def test_on_another_processor_there_is_no_guest(machine) -> None:
    done = machine(uname="echo aarch64")
    assert (done.returncode, done.stderr) == (0, "")
    assert "x86-64" in done.stdout


def test_who_may_not_install_is_told_what_to_install(machine) -> None:
    done = machine(uname="echo x86_64", id="echo 1000", apt_get="exit 100", dpkg_query="exit 1")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert "sudo apt-get install qemu-system-x86" in line


def test_what_cannot_be_installed_is_told_with_the_reason(machine) -> None:
    done = machine(
        uname="echo x86_64", id="echo 0", dpkg_query="exit 1", apt_get="echo E: Unable to locate package qemu; exit 100"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith("fails: E: Unable to locate package qemu")


def test_the_guests_scripts_can_be_run() -> None:
    for name in ("run", "prepare", "make_initramfs", "guest_init", "initramfs_init"):
        assert os.access(GUEST / name, os.X_OK), name
