"""The disk: what is found after a crash, and all that can go wrong before."""

import asyncio
import errno
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykvpool_sim.choosers import Fifo
from pykvpool_sim.disk import DiskFaults
from pykvpool_sim.draws import Draws
from pykvpool_sim.platter import SECTOR_BYTES, Directory, Inode, MediaFaults, Platter
from pykvpool_sim.world import World

#: Enough power cuts to see every outcome that the rules allow.
CUTS = 60


def on_a_disk(code, seed=1, faults=DiskFaults()):  # noqa: B008 -- it is frozen
    """Run `code(host)` on a host of its own."""

    async def scenario(world):
        host = world.host("a")
        host.disk.faults = faults
        return await code(host)

    return World(seed, chooser=lambda draws: Fifo()).run(scenario)


async def write(disk, path, content, *, sync=True, sync_directory=True):
    file = await disk.open(path, create=True)
    await file.truncate(0)
    offset = 0
    while offset < len(content):
        offset += await file.write_at(offset, content[offset:])
    if sync:
        await file.sync()
    if sync_directory:
        await disk.sync_directory(path.rpartition("/")[0])
    await file.close()


async def read(disk, path):
    file = await disk.open(path)
    content = b""
    while piece := await file.read_at(len(content), 10_000):
        content += piece
    return content


def after_power_cuts(prepare):
    """What `prepare(disk)` leaves to be found, over many seeds: a set of {path: content} as sorted tuples."""

    async def code(host):
        await prepare(host.disk)
        host.disk.crash(power=True)
        return tuple([(name, await read(host.disk, name)) for name in await host.disk.names()])

    return {on_a_disk(code, seed, DiskFaults(latency_ns=0)) for seed in range(CUTS)}


# -- what is found -----------------------------------------------------------------------------------------------


def test_what_was_synced_with_its_name_is_always_found():
    async def prepare(disk):
        await write(disk, "f", b"x" * 1_000)

    assert after_power_cuts(prepare) == {(("f", b"x" * 1_000),)}


def test_a_name_that_was_not_synced_takes_its_file_along():
    async def prepare(disk):
        await write(disk, "f", b"x", sync_directory=False)

    assert after_power_cuts(prepare) == {(), (("f", b"x"),)}


def test_data_that_was_not_synced_is_found_whole_in_part_or_as_zeros():
    async def prepare(disk):
        await write(disk, "f", b"x" * 2 * SECTOR_BYTES, sync=False)

    found = {content for ((_, content),) in after_power_cuts(prepare)}
    old, new, zeros = b"", b"x" * SECTOR_BYTES, bytes(SECTOR_BYTES)
    assert found == {old, new + new, new + zeros, zeros + new, zeros + zeros}


def test_an_overwrite_that_was_not_synced_tears_between_sectors():
    async def prepare(disk):
        await write(disk, "f", b"x" * 2 * SECTOR_BYTES)
        await write_over(disk)

    async def write_over(disk):
        file = await disk.open("f")
        await file.write_at(0, b"y" * 2 * SECTOR_BYTES)

    found = {content for ((_, content),) in after_power_cuts(prepare)}
    x, y = b"x" * SECTOR_BYTES, b"y" * SECTOR_BYTES
    assert found == {x + x, x + y, y + x, y + y}


def test_a_sector_tears_where_sectors_can():
    draws = Draws(1, "disk")
    inode = Inode()
    inode.write(0, b"x" * SECTOR_BYTES)
    Platter().flush(inode, draws, MediaFaults())
    found = set()
    for _ in range(CUTS):
        inode.write(0, b"y" * SECTOR_BYTES)
        inode.power_cut(draws, torn_sector_ratio=1.0)
        found.add(bytes(inode.durable))
        inode.put_durable(0, b"x" * SECTOR_BYTES)
    torn = found - {b"x" * SECTOR_BYTES}
    assert len(torn) > 10
    assert all(content.rstrip(b"x").strip(b"y") == b"" for content in torn)
    assert b"y" * SECTOR_BYTES not in torn


def test_a_rename_is_all_or_nothing_only_when_the_directory_was_synced():
    async def prepare(disk, sync_directory):
        await write(disk, "f", b"old")
        await write(disk, "f.new", b"new")
        await disk.rename("f.new", "f")
        if sync_directory:
            await disk.sync_directory()

    assert after_power_cuts(lambda disk: prepare(disk, True)) == {(("f", b"new"),)}
    assert after_power_cuts(lambda disk: prepare(disk, False)) == {
        (("f", b"new"),),
        (("f", b"new"), ("f.new", b"new")),  # found under both names
        (("f", b"old"),),  # found under neither
        (("f", b"old"), ("f.new", b"new")),
    }


def test_an_unlink_that_was_not_synced_may_be_undone():
    async def prepare(disk):
        await write(disk, "f", b"x")
        await disk.unlink("f")

    assert after_power_cuts(prepare) == {(), (("f", b"x"),)}


def test_what_lay_behind_a_cut_end_never_comes_back():
    async def code(host):
        await write(host.disk, "f", b"secret" * 200)
        file = await host.disk.open("f")
        await file.truncate(3)
        await file.sync()
        host.disk.crash(power=True)
        file = await host.disk.open("f")
        await file.truncate(1_200)
        return await read(host.disk, "f")

    assert on_a_disk(code) == b"sec" + bytes(1_197)


def test_a_killed_process_loses_its_handles_but_not_the_page_cache():
    async def code(host):
        file = await host.disk.open("f", create=True)
        await file.write_at(0, b"x")
        host.disk.crash(power=False)
        with pytest.raises(OSError, match="Bad file descriptor"):
            await file.write_at(1, b"y")
        return await read(host.disk, "f")

    assert on_a_disk(code) == b"x"


@given(
    seed=st.integers(0, 1_000),
    writes=st.lists(st.tuples(st.integers(0, 1_500), st.binary(min_size=1, max_size=1_200)), max_size=6),
    synced=st.integers(0, 6),
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_every_sector_found_is_one_that_was_written(seed, writes, synced):
    """Against a model: a sector is found as it was at the last sync, or as some later write left it."""
    inode, draws = Inode(), Draws(seed, "disk")
    versions = {}
    for number, (offset, data) in enumerate(writes, start=1):
        inode.write(offset, data)
        for sector in inode.dirty:
            versions.setdefault(sector, [bytes(SECTOR_BYTES)]).append(inode.sector(sector))
        if number == synced:
            Platter().flush(inode, draws, MediaFaults())
            versions = {sector: [inode.sector(sector)] for sector in versions}
            assert inode.durable == inode.cached
    inode.power_cut(draws, torn_sector_ratio=0)
    assert inode.cached == inode.durable
    for sector, possible in versions.items():
        visible = min(max(inode.durable_size - sector * SECTOR_BYTES, 0), SECTOR_BYTES)
        assert inode.old_sector(sector) in [version[:visible].ljust(SECTOR_BYTES, b"\0") for version in possible]


# -- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "call", "number"),
    [
        (DiskFaults(read_error_ratio=1), lambda file: file.read_at(0, 1), errno.EIO),
        (DiskFaults(write_error_ratio=1), lambda file: file.write_at(0, b"y"), errno.EIO),
        (DiskFaults(sync_error_ratio=1), lambda file: file.sync(), errno.EIO),
        (DiskFaults(capacity_bytes=1_024), lambda file: file.write_at(0, bytes(2_000)), errno.ENOSPC),
    ],
)
def test_failures_look_as_they_do_on_linux(faults, call, number):
    async def code(host):
        await write(host.disk, "f", b"x")
        file = await host.disk.open("f")
        host.disk.faults = faults
        with pytest.raises(OSError, match=r"f") as error:
            await call(file)
        assert error.value.errno == number
        assert await file.size() == 1

    on_a_disk(code)


def test_missing_files_and_directories_are_told():
    async def code(host):
        disk = host.disk
        for call in (disk.open("f"), disk.rename("f", "g"), disk.unlink("f"), disk.names("d"), disk.open("d/f")):
            with pytest.raises(FileNotFoundError):
                await call
        await disk.make_directory("d")
        await write(disk, "d/f", b"x")
        await disk.rename("d/f", "g")
        assert await disk.names("d") == []
        assert await disk.names() == ["g"]
        file = await disk.open("g")
        await file.close()
        await file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            await file.sync()

    on_a_disk(code)


def test_a_failed_sync_lies_ever_after():
    async def code(host):
        await write(host.disk, "f", b"old")
        file = await host.disk.open("f")
        await file.write_at(0, b"new")
        host.disk.faults = DiskFaults(sync_error_ratio=1)
        with pytest.raises(OSError, match="Input/output error"):
            await file.sync()
        host.disk.faults = DiskFaults()
        await file.sync()  # says that all is well
        seen = await read(host.disk, "f")
        host.disk.drop_caches()
        return seen, await read(host.disk, "f")

    assert on_a_disk(code) == (b"new", b"old")


def test_dropped_caches_keep_what_is_dirty():
    async def code(host):
        await write(host.disk, "f", b"x" * SECTOR_BYTES)
        file = await host.disk.open("f")
        await file.write_at(SECTOR_BYTES, b"dirty")
        host.disk.drop_caches()
        return await read(host.disk, "f")

    assert on_a_disk(code) == b"x" * SECTOR_BYTES + b"dirty"


def test_reads_and_writes_may_do_less_than_was_asked_but_never_nothing():
    async def code(host):
        content = bytes(range(256)) * 8
        await write(host.disk, "f", content)
        assert await read(host.disk, "f") == content
        file = await host.disk.open("f")
        assert await file.write_at(0, b"y" * 100) < 100
        assert 0 < len(await file.read_at(0, 100)) < 100

    on_a_disk(code, faults=DiskFaults(short_read_ratio=1, short_write_ratio=1))


@pytest.mark.parametrize("kind", ["lost_write_ratio", "misdirected_write_ratio", "corrupt_write_ratio"])
def test_silent_faults_show_only_when_the_cache_is_gone(kind):
    async def code(host):
        disk = host.disk
        await write(disk, "other", b"o" * SECTOR_BYTES)
        disk.faults = replace(DiskFaults(), media=replace(MediaFaults(), **{kind: 1.0}))
        await write(disk, "f", b"x" * SECTOR_BYTES)
        assert await read(disk, "f") == b"x" * SECTOR_BYTES
        disk.faults = DiskFaults()
        disk.crash(power=True)
        return await read(disk, "f"), await read(disk, "other")

    found, other = on_a_disk(code)
    if kind == "corrupt_write_ratio":
        assert sum(byte != ord("x") for byte in found) == 1
    else:
        assert found == bytes(SECTOR_BYTES)
    assert (other == b"x" * SECTOR_BYTES) == (kind == "misdirected_write_ratio")


def test_a_cancelled_write_may_still_happen():
    """A thread that writes cannot be called back: whoever cancels has to expect the write later."""

    async def code(host):
        file = await host.disk.open("f", create=True)
        writing = asyncio.ensure_future(file.write_at(0, b"late"))
        await asyncio.sleep(0)
        writing.cancel()
        sizes = [await file.size()]
        await asyncio.sleep(1)
        return [*sizes, await file.size()]

    assert on_a_disk(code, faults=DiskFaults(latency_ns=10_000_000))[1] == 4


def test_calls_take_time_and_syncs_take_longer():
    async def code(host):
        loop = asyncio.get_running_loop()
        file = await host.disk.open("f", create=True)
        begun = loop.time()
        for _ in range(20):
            await file.write_at(0, b"x")
        written = loop.time()
        for _ in range(20):
            await file.sync()
        return written - begun, loop.time() - written

    writing_s, syncing_s = on_a_disk(code, faults=DiskFaults(latency_ns=1_000_000))
    assert 0 < writing_s < syncing_s


def test_a_directory_change_is_found_up_to_some_moment_for_each_name():
    found = set()
    for seed in range(CUTS):
        directory, first, second = Directory(), Inode(), Inode()
        directory.set("a", first)
        directory.set("a", None)
        directory.set("a", second)
        directory.set("b", first)
        directory.power_cut(Draws(seed, "disk"))
        names = {id(first): "first", id(second): "second"}
        found.add(tuple(sorted((name, names[id(inode)]) for name, inode in directory.cached.items())))
    a_states = [(), (("a", "first"),), (("a", "second"),)]
    assert found == {state + rest for state in a_states for rest in [(), (("b", "first"),)]}
