"""The log keeps what it acknowledged, whatever the disk does; and each of its precautions is needed."""

import asyncio
import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykvpool_sim import log as log_module
from pykvpool_sim.choosers import Fifo
from pykvpool_sim.disk import DiskFaults
from pykvpool_sim.draws import Draws
from pykvpool_sim.errors import HostCrashed
from pykvpool_sim.log import MAX_PAYLOAD_BYTES, Log, LogBroken, parse
from pykvpool_sim.platter import MediaFaults
from pykvpool_sim.world import World


class LogUser:
    """Appends, crashes and reopens by the seed, and knows what the log owes it."""

    def __init__(self, world, disk_of=lambda host: host.disk, *, power_cuts=True):
        self.world = world
        self.host = world.host("node")
        self.disk_of = disk_of
        self.power_cuts = power_cuts
        self.draws = world.draws("user")
        #: Acknowledged, or shown by a recovery.
        self.owed = []
        #: May or may not be there.
        self.uncertain = []
        self.attempts = 0
        self.appended = 0

    async def run(self, rounds):
        for _ in range(rounds):
            life = self.host.spawn(self.live())
            # Long enough for a dozen records; mostly the crash comes in the middle of something.
            await asyncio.sleep(self.draws.between(0, 150 * self.host.disk.faults.latency_ns) / 1e9)
            if life.done():
                life.result()
            self.host.crash(power=self.power_cuts and self.draws.chance(0.6))
            if self.draws.chance(0.3):
                self.host.disk.drop_caches()
            self.host.restart()
        self.host.disk.faults = DiskFaults()
        await self.host.run(self.open())

    async def live(self):
        while True:
            try:
                log = await self.open()
            except OSError:
                continue
            try:
                for _ in range(self.draws.between(1, 8)):
                    await self.append(log)
            except (OSError, LogBroken):
                pass

    async def open(self):
        log = await Log.open(self.disk_of(self.host), "log", self.world.draws("ids"))
        self.check(list(log.recovered))
        self.owed, self.uncertain = list(log.recovered), []
        return log

    async def append(self, log):
        self.attempts += 1
        payload = b"%d:" % self.attempts + b"x" * self.draws.between(0, 1_200)
        self.uncertain = [payload]
        try:
            number = await log.append(payload)
        except OSError:
            self.uncertain = []  # certainly not written
            raise
        assert number == len(self.owed)
        self.owed.append(payload)
        self.uncertain = []
        self.appended += 1

    def check(self, recovered):
        assert recovered in (self.owed, self.owed + self.uncertain), (
            f"owed {len(self.owed)} records and perhaps {len(self.uncertain)}, recovered {len(recovered)}"
        )


def use_log(seed, faults, *, rounds=6, **options):
    async def scenario(world):
        user = LogUser(world, **options)
        user.host.disk.faults = faults
        await user.run(rounds)
        return user.appended

    return World(seed, chooser=lambda draws: Fifo()).run(scenario)


RATIOS = st.sampled_from([0.0, 0.05, 0.3])


@given(
    seed=st.integers(0, 10_000),
    faults=st.builds(
        DiskFaults,
        read_error_ratio=RATIOS,
        write_error_ratio=RATIOS,
        sync_error_ratio=RATIOS,
        short_read_ratio=RATIOS,
        short_write_ratio=RATIOS,
        torn_sector_ratio=st.sampled_from([0.0, 0.5]),
        capacity_bytes=st.sampled_from([None, 20_000]),
        latency_ns=st.sampled_from([20_000, 500_000]),
    ),
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_what_was_acknowledged_survives_all_faults_that_are_told(seed, faults):
    use_log(seed, faults)


def test_the_scenario_really_appends_and_really_crashes_in_the_middle():
    assert sum(use_log(seed, DiskFaults(latency_ns=20_000)) for seed in range(5)) > 50


# -- every precaution is needed ----------------------------------------------------------------------------------


class Forgetful:
    """A disk as the log would use it if somebody left a step out."""

    def __init__(self, disk, *, sync_files=True, sync_directories=True):
        self.disk = disk
        self.sync_files = sync_files
        self.sync_directories = sync_directories

    def __getattr__(self, name):
        return getattr(self.disk, name)

    async def open(self, path, *, create=False):
        file = await self.disk.open(path, create=create)
        return file if self.sync_files else ForgetfulFile(file)

    async def sync_directory(self, directory=""):
        if self.sync_directories:
            await self.disk.sync_directory(directory)


class ForgetfulFile:
    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    async def sync(self):
        """Nothing."""


def is_caught(faults=DiskFaults(latency_ns=20_000, torn_sector_ratio=0.5), **options):  # noqa: B008 -- frozen
    """Some of a few seeds break the log's promise."""
    for seed in range(20):
        try:
            use_log(seed, faults, **options)
        except AssertionError:
            return True
    return False


def test_the_log_as_it_is_is_not_caught():
    assert not is_caught()
    assert not is_caught(DiskFaults(latency_ns=20_000, sync_error_ratio=0.2))


def test_without_the_sync_of_the_file_it_is_caught():
    assert is_caught(disk_of=lambda host: Forgetful(host.disk, sync_files=False))


def test_without_the_sync_of_the_directory_it_is_caught():
    assert is_caught(disk_of=lambda host: Forgetful(host.disk, sync_directories=False))


def test_without_the_checksum_it_is_caught(monkeypatch):
    monkeypatch.setattr(log_module, "checksum", lambda log_id, sequence, payload: bytes(8))
    assert is_caught()


def test_records_of_another_log_pass_only_if_the_checksum_does_not_bind_them(monkeypatch):
    """A sector of an old file in a new file's place: its records are whole, and not this log's."""

    def spliced():
        stale = log_module._record(b"old-old-", 0, b"a" * 500)
        return log_module._header(b"new-new-") + stale

    assert parse(spliced()) == []
    honest = log_module.checksum
    monkeypatch.setattr(log_module, "checksum", lambda log_id, sequence, payload: honest(b"", sequence, payload))
    assert parse(spliced()) == [b"a" * 500]


class InPlace(Log):
    """Goes on in the file that it finds, as most logs do, and trusts a sync that comes after a failed one."""

    @classmethod
    async def open(cls, disk, path, random_source):
        try:
            file = await disk.open(path)
        except FileNotFoundError:
            return await super().open(disk, path, random_source)
        content = await file.read_at(0, 1 << 24)
        records = parse(content)
        await file.sync()
        await disk.sync_directory()
        return cls(file, content[4:12], records)


def test_without_the_new_file_at_opening_it_is_caught(monkeypatch):
    monkeypatch.setitem(globals(), "Log", InPlace)
    assert is_caught(DiskFaults(latency_ns=20_000, sync_error_ratio=0.2))


def test_without_breaking_after_a_failed_sync_it_is_caught(monkeypatch):
    async def append_and_hope(self, payload):
        try:
            return await honest_append(self, payload)
        except LogBroken:
            self._broken = False
            return await honest_append(self, payload)  # and now the sync says that all is well

    honest_append = Log.append
    monkeypatch.setattr(Log, "append", append_and_hope)
    # The pages are written anew, so only what shares their file, not their sectors, could be lost: it takes a hopeful
    # log that does not write again.
    monkeypatch.setattr(log_module, "_write_all", _write_once(log_module._write_all))
    assert is_caught(DiskFaults(latency_ns=20_000, sync_error_ratio=0.2))


def _write_once(write_all):
    written = set()

    async def write(file, offset, data):
        if (file, offset) not in written:
            written.add((file, offset))
            await write_all(file, offset, data)

    return write


# -- what the disk does in silence -------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), kind=st.integers(0, 2))
@settings(derandomize=True, max_examples=40, deadline=None)
def test_a_lying_disk_shortens_the_log_but_never_changes_it(seed, kind):
    ratios = [0.1 if kind == position else 0.0 for position in range(3)]

    async def scenario(world):
        host = world.host("node")
        host.disk.faults = DiskFaults(media=MediaFaults(*ratios))
        log = await Log.open(host.disk, "log", world.draws("ids"))
        records = [b"%d" % number * 300 for number in range(12)]
        for record in records:
            await log.append(record)
        host.disk.crash(power=True)
        host.disk.faults = DiskFaults()
        try:
            recovered = list((await Log.open(host.disk, "log", world.draws("ids"))).recovered)
        except FileNotFoundError:
            recovered = []
        assert recovered == records[: len(recovered)]

    World(seed, chooser=lambda draws: Fifo()).run(scenario)


@given(st.data())
@settings(derandomize=True, max_examples=100, deadline=None)
def test_garbage_is_never_taken_for_a_record(data):
    payloads = data.draw(st.lists(st.binary(max_size=60), max_size=5))
    log_id = b"12345678"
    content = bytearray(log_module._header(log_id))
    for number, payload in enumerate(payloads):
        content += log_module._record(log_id, number, payload)
    assert parse(bytes(content)) == payloads
    end = data.draw(st.integers(0, len(content)))
    cut = parse(bytes(content[:end]))
    assert cut == payloads[: len(cut)]
    if content:
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
        changed = parse(bytes(content))
        assert changed == payloads[: len(changed)]
        assert len(changed) < len(payloads) or not payloads


# -- how it behaves ----------------------------------------------------------------------------------------------


def run(code, faults=DiskFaults()):  # noqa: B008 -- frozen
    async def scenario(world):
        host = world.host("node")
        host.disk.faults = faults
        return await host.run(code(host, Draws(1, "ids")))

    return World(1, chooser=lambda draws: Fifo()).run(scenario)


def test_a_full_disk_refuses_the_record_and_the_log_goes_on():
    async def code(host, ids):
        log = await Log.open(host.disk, "log", ids)
        await log.append(b"kept")
        host.disk.faults = DiskFaults(capacity_bytes=1_024, short_write_ratio=1.0)
        with pytest.raises(OSError, match="No space") as error:
            await log.append(b"x" * 4_000)
        assert error.value.errno == errno.ENOSPC
        await log.append(b"small")
        await log.close()
        host.disk.faults = DiskFaults()
        return (await Log.open(host.disk, "log", ids)).recovered

    assert run(code) == (b"kept", b"small")


def test_after_a_failed_sync_or_a_cancelled_append_it_wants_to_be_opened_anew():
    async def code(host, ids):
        log = await Log.open(host.disk, "log", ids)
        host.disk.faults = DiskFaults(sync_error_ratio=1)
        with pytest.raises(LogBroken, match="may be durable or not"):
            await log.append(b"a")
        with pytest.raises(LogBroken, match="open the log anew"):
            await log.append(b"b")
        host.disk.faults = DiskFaults()
        log = await Log.open(host.disk, "log", ids)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.000_001):
                await log.append(b"c")
        with pytest.raises(LogBroken):
            await log.append(b"d")

    run(code)


def test_a_payload_over_the_limit_is_refused_before_it_is_written():
    async def code(host, ids):
        log = await Log.open(host.disk, "log", ids)
        with pytest.raises(ValueError, match="over the limit"):
            await log.append(bytes(MAX_PAYLOAD_BYTES + 1))
        return await log.append(b"")

    assert run(code) == 0


def test_a_read_error_that_passes_is_survived_and_one_that_stays_is_told():
    async def code(host, ids):
        log = await Log.open(host.disk, "log", ids)
        await log.append(b"a")
        host.disk.faults = DiskFaults(read_error_ratio=1)
        with pytest.raises(OSError, match="Input/output error"):
            await Log.open(host.disk, "log", ids)
        host.disk.faults = DiskFaults()
        return (await Log.open(host.disk, "log", ids)).recovered

    assert run(code) == (b"a",)


def test_a_crash_in_the_middle_of_an_append_reaches_who_waits():
    async def scenario(world):
        host = world.host("node")
        log = await host.run(Log.open(host.disk, "log", world.draws("ids")))
        appending = asyncio.ensure_future(host.run(log.append(b"x")))
        await asyncio.sleep(0)
        host.crash()
        with pytest.raises(HostCrashed):
            await appending

    World(1).run(scenario)
