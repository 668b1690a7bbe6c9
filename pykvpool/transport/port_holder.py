"""Who listens on a TCP port of this host: for the one error message in which it saves a search.

Reads /proc; knows only what this user may see, and says so by returning nothing. Called once, when listening failed.
"""

from __future__ import annotations

from pathlib import Path

#: State "listening" in /proc/net/tcp.
_LISTEN = "0A"
#: A command line is shown up to this length.
_MAX_COMMAND_CHARS = 120


def who_listens_on(port: int, proc: Path = Path("/proc")) -> str:
    """``"pid 4711 (python -m pykvpool master) holds it"``; empty where /proc does not tell."""
    inodes = _listening_inodes(port, proc)
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for directory in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        if _holds(directory, wanted):
            return f"pid {directory.name} ({command_of(directory)}) holds it"
    return "a process of another user holds it"


def command_of(directory: Path) -> str:
    """The command line of the process at /proc/<pid>; its short name where that is hidden."""
    for name in ("cmdline", "comm"):
        try:
            text = (directory / name).read_bytes()
        except OSError:
            continue  # it is gone, or another user's
        command = text.replace(b"\0", b" ").decode("utf-8", "replace").strip()
        if command:
            return command[:_MAX_COMMAND_CHARS]
    return "unknown"


def _listening_inodes(port: int, proc: Path) -> list[str]:
    inodes = []
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6, or no /proc
        for line in lines:
            columns = line.split()
            if len(columns) > 9 and columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.append(columns[9])
    return inodes


def _holds(directory: Path, wanted: set[str]) -> bool:
    try:
        links = list((directory / "fd").iterdir())
    except OSError:
        return False  # another user's process, or gone
    for link in links:
        try:
            if str(link.readlink()) in wanted:
                return True
        except OSError:
            continue  # closed meanwhile
    return False
