"""What `make test-rdma` shows of the guest's console: what the command printed, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "rdma" / "guest" / "console.sed"
BOOT = "SeaBIOS\r\n[    0.9] noise\r\n@@BEGIN 12.3\r\n"
END = "\r\n@@END 0 99.1\r\n[   99.2] reboot: Power down\r\n"


@pytest.mark.skipif(shutil.which("sed") is None, reason="there is no sed here")
@pytest.mark.parametrize(
    "printed",
    [
        "",
        "no line end",
        "a summary\n",
        "\na\n\nb\n\n\nc\n",
        "an empty line of its own at the end\n\n",
        "and more\n\n\n",
        "reboot: not the kernel's\n",
    ],
)
def test_what_the_command_printed_is_shown_and_its_summary_is_last(printed: str) -> None:
    console = BOOT + printed.replace("\n", "\r\n") + END
    command = ["sed", "-u", "-n", "-f", str(SCRIPT)]
    shown = subprocess.run(command, input=console.encode(), capture_output=True, check=True).stdout.decode()
    whole_lines = printed if not printed or printed.endswith("\n") else printed + "\n"
    assert shown == whole_lines


@pytest.mark.skipif(shutil.which("sed") is None, reason="there is no sed here")
def test_what_failed_before_the_command_is_shown_as_well() -> None:
    console = "noise\r\n@@FAILED modprobe rdma_rxe\r\nmore\r\n" + BOOT + "x\r\n" + END
    command = ["sed", "-u", "-n", "-f", str(SCRIPT)]
    shown = subprocess.run(command, input=console.encode(), capture_output=True, check=True).stdout.decode()
    assert shown == "@@FAILED modprobe rdma_rxe\nx\n"
