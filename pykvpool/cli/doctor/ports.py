"""Checks of ports: can what the configuration wants to listen at be had, and who has it if not?"""

from __future__ import annotations

import errno
import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass

from pykvpool.cli.doctor.finding import Check, Finding
from pykvpool.cli.doctor.view import HostView
from pykvpool.cli.doctor.wants import Port, Wants

#: The kernel's number of a listening socket's state.
LISTENING = "0A"
ANY = ("0.0.0.0", "::", "", "*")


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens, of anybody."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    inode: str


def ports(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("ports")
    listeners = list(listening(view))
    free = []
    for port in wants.ports:
        finding = _look(check, view, port, listeners)
        if finding is None:
            free.append(port)
        else:
            yield finding
    if free:
        yield check.ok(f"free: {', '.join(f'{port} ({port.key})' for port in free)}")


def masters(view: HostView, wants: Wants) -> Iterator[Finding]:
    """Does anybody listen where the configuration says that the master is? One may be started later: a warning."""
    check = Check("master")
    for address in wants.masters:
        why = view.reach(address)
        if why is None:
            yield check.ok(f"somebody listens at {address} (pool.master)")
        else:
            yield check.warn(
                f"no master answers at {address} (pool.master): {why}",
                f"start it there: pykvpool master --listen {_listen_flag(address)}; or correct pool.master",
            )


def _listen_flag(address: str) -> str:
    """Where a master listens that is to be reached at this address."""
    scheme, _, rest = address.partition("://")
    return address if scheme != "tcp" else f"tcp://0.0.0.0:{rest.rpartition(':')[2]}"


def _look(check: Check, view: HostView, port: Port, listeners: list[Listener]) -> Finding | None:
    """What is wrong with a port, None: nothing."""
    holder = next((listener for listener in listeners if _collide(listener, port)), None)
    if holder is not None:
        owner = _owner(view, holder.inode)
        if "pykvpool" in owner:
            return check.ok(f"{port} ({port.key}) is served already, by {owner}")
        by = f" by {owner}" if owner else ""
        return check.broken(
            f"{port} ({port.key}) is in use{by}",
            f"set {port.key} to another port; sudo ss -ltnp 'sport = :{port.port}' names who has it",
            wanted=port.asked,
        )
    problem = view.listen(port.host, port.port)
    if problem is None:
        return None
    fix = {
        errno.EACCES: f"use a port above 1023, or: sudo sysctl net.ipv4.ip_unprivileged_port_start={port.port}",
        errno.EADDRNOTAVAIL: f"set {port.key} to an address of this host (ip -brief address), or to 0.0.0.0",
    }.get(problem, f"set {port.key} to another port")
    return check.broken(f"cannot listen at {port} ({port.key}): {os.strerror(problem)}", fix, wanted=port.asked)


def listening(view: HostView) -> Iterator[Listener]:
    """Every listening TCP socket of this network namespace."""
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in (view.read(table) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != LISTENING:
                continue
            address, _, port = fields[1].partition(":")
            try:
                yield Listener(_address(address), int(port, 16), fields[9])
            except ValueError:
                continue


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel prints an address as numbers of four bytes in the host's order (little endian on all we run on)."""
    raw = bytes.fromhex(text)
    words = [raw[start : start + 4][::-1] for start in range(0, len(raw), 4)]
    return ipaddress.ip_address(b"".join(words))


def _collide(listener: Listener, port: Port) -> bool:
    if listener.port != port.port:
        return False
    if listener.address.is_unspecified or port.host in ANY:
        return True
    try:
        wanted = ipaddress.ip_address(port.host)
    except ValueError:  # a name: it may be any address
        return True
    mapped = getattr(listener.address, "ipv4_mapped", None)
    return wanted in (listener.address, mapped)


def _owner(view: HostView, inode: str) -> str:
    """``process 123 (python3 -m pykvpool master)``; "" where this user may not see it."""
    wanted = f"socket:[{inode}]"
    for pid in view.names("proc"):
        if not pid.isdecimal():
            continue
        for descriptor in view.names(f"proc/{pid}/fd"):
            try:
                found = view.path(f"proc/{pid}/fd/{descriptor}").readlink()
            except OSError:
                continue
            if str(found) == wanted:
                command = " ".join((view.read(f"proc/{pid}/cmdline") or "").replace("\0", " ").split())
                return f"process {pid} ({command[:60]})"
    return ""
