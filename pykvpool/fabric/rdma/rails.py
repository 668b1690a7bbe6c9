"""Rails: the ports of this host's RDMA devices that can move data, and the word that one cannot any more.

Devices are opened by name, or all of them; a port that is active and has an address is a rail. Devices speak up by
themselves (a port went down, the device is gone): then the rail's users are told at once, instead of finding out when
a transfer has waited in vain. A device that died is closed by its users and opened anew at the next `refresh`.

It knows nothing of peers, memory or transfers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable

from pykvpool.errors import ConfigError, NotSupported, PoolError, Unavailable
from pykvpool.fabric.rdma import gids
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.verbs import DeviceContext, EventKind, Gid, LinkLayer, Port, PortState, Verbs, VerbsError
from pykvpool.fabric.verbs.lifetime import GONE
from pykvpool.fabric.verbs.load import load
from pykvpool.memory.locked import LockedMemory, locked_memory

log = logging.getLogger("pykvpool.fabric.rdma")

#: Events taken in one turn of the loop. A device that says more has its other events wait for the next turn.
EVENTS_PER_TURN = 64
#: Reads that one queue pair has under way. More than the largest cards answer helps nobody.
MAX_READ_DEPTH = 16
#: Times that an object is closed which its device does not let go of: a command of its firmware may fail once.
DESTROY_TRIES = 3
#: Events after which a device's objects are worth nothing.
_FATAL = (EventKind.DEVICE_FATAL, EventKind.CQ_ERROR)
#: Events that say that a port or its addresses changed.
_PORT_CHANGES = (
    EventKind.PORT_ACTIVE,
    EventKind.PORT_DOWN,
    EventKind.LID_CHANGE,
    EventKind.GID_CHANGE,
    EventKind.CLIENT_REREGISTER,
)


def require_verbs(settings: RdmaSettings) -> Verbs:
    """A binding, on a host with an RDMA device. Raises `NotSupported` with one line that says what is missing."""
    verbs = settings.verbs or load(settings.binding)
    if not verbs.devices():
        raise NotSupported(
            f"rdma: this host has no RDMA device ({verbs.name} lists none): load its driver "
            "('rdma link' lists devices), or use shm and tcp"
        )
    return verbs


class Device:
    """An open device, from `Rails.refresh` until `close`."""

    def __init__(self, context: DeviceContext, on_gone: Callable[[Device, PoolError], None]) -> None:
        self.context = context
        self._on_gone = on_gone
        self.name = context.name
        self.limits = context.limits()
        #: Why nothing on it works any more; None: it works.
        self.failure: PoolError | None = None

    @property
    def read_depth(self) -> int:
        return max(1, min(MAX_READ_DEPTH, self.limits.max_qp_read_depth))

    def let_go(self, close: Callable[[], None]) -> None:
        """Close one of its objects. On a device that is gone the kernel has done so already, and says EIO.

        Raises `VerbsError` where a live device refuses again and again, or something that belongs to the object is
        still open.
        """
        for left in reversed(range(DESTROY_TRIES)):
            try:
                close()
                return
            except VerbsError as error:
                if error.errno in GONE:
                    log.debug("%s is gone, and so is what was on it: %s", self.name, error)
                    if self.failure is None:
                        # Its own word of that comes a little later.
                        gone = Unavailable(f"rdma: {self.name} is gone: {error}", device=self.name)
                        asyncio.get_running_loop().call_soon(self._on_gone, self, gone)
                    return
                if error.errno == errno.EBUSY or not left:
                    raise


class Rail:
    """One port of a device."""

    def __init__(self, device: Device, port: Port, only_gid: int | None) -> None:
        self.device = device
        self.number = port.number
        self._only_gid = only_gid
        self.port = port

    @property
    def name(self) -> str:
        return f"{self.device.name}:{self.number}"

    @property
    def gids(self) -> list[Gid]:
        """Addresses to try, the preferred first."""
        found = gids.usable(self.port.gids)
        return found if self._only_gid is None else [gid for gid in found if gid.index == self._only_gid]

    @property
    def idle_reason(self) -> str:
        """Why no data can move here now, "" where it can."""
        if self.device.failure is not None:
            return self.device.failure.message
        if self.port.state is not PortState.ACTIVE:
            return f"the port is {self.port.state}"
        if not self.gids:
            return "no address" if self._only_gid is None else f"no address at index {self._only_gid}"
        if self.port.link_layer is LinkLayer.UNKNOWN:
            return "a link layer that is neither Ethernet nor InfiniBand"
        return ""

    @property
    def active(self) -> bool:
        return not self.idle_reason

    def look(self) -> None:
        """Read the port anew. Raises `VerbsError`."""
        self.port = self.device.context.port(self.number)


class Rails:
    """All rails of one user (a client, or a server). `on_lost` is told of each rail that stops working."""

    def __init__(self, verbs: Verbs, settings: RdmaSettings, on_lost: Callable[[Rail, PoolError], None]) -> None:
        self._verbs = verbs
        self._wanted = dict(map(_device_and_port, settings.devices))
        self._only_gid = settings.gid_index
        self._on_lost = on_lost
        self._rails: list[Rail] = []
        #: Devices that could not be opened when last tried: said once.
        self._refused: set[str] = set()
        self._devices: list[Device] = []

    @property
    def active(self) -> list[Rail]:
        """Those that can move data, in the order of device names."""
        return [rail for rail in self._rails if rail.active]

    @property
    def devices(self) -> list[Device]:
        return [device for device in self._devices if device.failure is None]

    def refresh(self) -> list[Rail]:
        """Open what is not open yet, and return the active rails.

        Raises:
            ConfigError: a device that was asked for is not there.
            Unavailable: no port is up.
        """
        present = [device.name for device in self._verbs.devices()]
        for name in self._wanted:
            if name not in present:
                raise ConfigError(
                    f"rdma.devices names {name!r}: this host has {', '.join(present) or 'no RDMA device'}"
                )
        open_ = {device.name for device in self.devices}
        for name in sorted(set(present) - open_):
            if not self._wanted or name in self._wanted:
                self._open(name)
        active = self.active
        if not active:
            reasons = "; ".join(f"{rail.name}: {rail.idle_reason}" for rail in self._rails) or "no device can be opened"
            raise Unavailable(f"rdma: no port of this host can move data ({reasons})")
        return active

    def locked(self) -> LockedMemory:
        """What may be registered, as far as the limit on locked memory goes."""
        return locked_memory() if self._verbs.pins_memory else LockedMemory(None, 0)

    def close(self, device: Device) -> None:
        """Close a device on which nothing is left. Raises `VerbsError` where something is."""
        self._unwatch(device)
        device.let_go(device.context.close)
        self._devices.remove(device)
        self._rails = [rail for rail in self._rails if rail.device is not device]

    def close_all(self) -> None:
        """Every device; one that refuses stays open until the process ends, which is logged."""
        for device in list(self._devices):
            try:
                self.close(device)
            except VerbsError as error:
                log.warning("rdma: %s stays open: %s", device.name, error)

    def lose(self, device: Device, error: PoolError) -> None:
        """Nothing on this device works any more."""
        if device.failure is not None:
            return
        self._unwatch(device)
        lost = [rail for rail in self._rails if rail.device is device and rail.active]
        device.failure = error
        log.warning("%s", error)
        for rail in lost:
            self._on_lost(rail, error)

    def _open(self, name: str) -> None:
        try:
            context = self._verbs.open(name)
        except VerbsError as error:
            self._leave_out(name, error)
            return
        try:
            device = Device(context, self.lose)
            wanted_port = self._wanted.get(name)
            numbers = [wanted_port] if wanted_port else range(1, device.limits.ports + 1)
            rails = [Rail(device, context.port(number), self._only_gid) for number in numbers]
        except VerbsError as error:
            self._leave_out(name, error)
            with contextlib.suppress(VerbsError):
                context.close()
            return
        self._refused.discard(name)
        self._devices.append(device)
        self._rails += rails
        self._rails.sort(key=lambda rail: (rail.device.name, rail.number))
        asyncio.get_running_loop().add_reader(context.event_fd, self._on_events, device)
        for rail in rails:
            _log_choice(rail)

    def _leave_out(self, name: str, error: VerbsError) -> None:
        log.log(logging.DEBUG if name in self._refused else logging.WARNING, "rdma: %s is left out: %s", name, error)
        self._refused.add(name)

    def _unwatch(self, device: Device) -> None:
        if device.failure is None:
            asyncio.get_running_loop().remove_reader(device.context.event_fd)

    def _on_events(self, device: Device) -> None:
        """The device has something to say."""
        if device.failure is not None:
            return
        try:
            for _ in range(EVENTS_PER_TURN):
                event = device.context.next_event()
                if event is None:
                    return
                if event.kind in _FATAL:
                    self.lose(device, Unavailable(f"rdma: {device.name} reports a {event.kind}", device=device.name))
                    return
                if event.kind in _PORT_CHANGES:
                    self._look(device)
                else:
                    # Of single queue pairs: whoever uses them has their completions, which say more.
                    log.debug("rdma: %s reports: %s", device.name, event.kind)
        except VerbsError as error:
            self.lose(device, Unavailable(f"rdma: {device.name} is gone: {error}", device=device.name))

    def _look(self, device: Device) -> None:
        """Ports of `device` may have changed."""
        for rail in [rail for rail in self._rails if rail.device is device]:
            was_active = rail.active
            rail.look()
            if was_active and not rail.active:
                error = Unavailable(f"rdma: rail {rail.name} is lost: {rail.idle_reason}", device=device.name)
                log.warning("%s", error)
                self._on_lost(rail, error)
            elif rail.active and not was_active:
                _log_choice(rail)


def _log_choice(rail: Rail) -> None:
    if rail.idle_reason:
        log.info("rdma: %s is left out: %s", rail.name, rail.idle_reason)
        return
    first = rail.gids[0]
    log.info(
        "rdma: using %s (%s, MTU %d) with %s: %s",
        rail.name, rail.port.link_layer, rail.port.active_mtu_bytes, gids.name(first), gids.reason(first),
    )  # fmt: skip


def _device_and_port(text: str) -> tuple[str, int]:
    """``name`` or ``name:port``; port 0 stands for all. Raises `ConfigError`."""
    name, colon, port = text.partition(":")
    if not name or (colon and not (port.isascii() and port.isdigit() and int(port))):
        raise ConfigError(
            f"rdma.devices has {text!r}: expected a device like mlx5_0, or one of its ports like mlx5_0:1"
        )
    return name, int(port or 0)
