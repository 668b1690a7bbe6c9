"""Files in and out: bounded, never half written."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pykvpool.cli import files
from pykvpool.errors import InvalidArgument, LimitExceeded


async def test_a_file_is_read_whole_and_its_progress_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 4)
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    moved: list[int] = []
    assert await files.read(str(path), moved.append) == b"0123456789"
    assert moved == [4, 8, 10]


async def test_an_empty_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidArgument, match="empty is empty: an object has at least one byte"):
        await files.read(str(tmp_path / "empty"), lambda moved: None)
    with pytest.raises(InvalidArgument, match="is a directory"):
        await files.read(str(tmp_path), lambda moved: None)
    with pytest.raises(InvalidArgument, match="is a directory"):
        await files.write(str(tmp_path), memoryview(b"x"), lambda moved: None)


async def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(files.MAX_FILE_BYTES + 1)
    with pytest.raises(LimitExceeded, match=r"large has 1 GiB|large has 1\.0 GiB"):
        await files.read(str(path), lambda moved: pytest.fail("it was read"))


async def test_a_pipe_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    reading, writing = os.pipe()
    os.write(writing, b"x" * 11)
    os.close(writing)
    try:
        with pytest.raises(LimitExceeded):
            await files.read(f"/dev/fd/{reading}", lambda moved: None)
    finally:
        os.close(reading)


async def test_a_file_is_replaced_when_complete_and_left_alone_when_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 4)
    path = tmp_path / "out"
    path.write_bytes(b"old")

    def fail(moved: int) -> None:
        assert path.read_bytes() == b"old"
        if moved > 4:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        await files.write(str(path), memoryview(b"0123456789"), fail)
    assert path.read_bytes() == b"old"
    await files.write(str(path), memoryview(b"0123456789"), lambda moved: None)
    assert path.read_bytes() == b"0123456789"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


async def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "out")
    with pytest.raises(FileNotFoundError) as refused:
        await files.write(path, memoryview(b"x"), lambda moved: None)
    assert refused.value.filename == path


async def test_devices_are_written_in_place() -> None:
    await files.write("/dev/null", memoryview(b"x"), lambda moved: None)
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("work", ["read", "write"])
def test_a_named_pipe_with_nobody_at_its_other_end_can_be_given_up(tmp_path: Path, work: str) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    async def give_up() -> None:
        if work == "read":
            task = asyncio.ensure_future(files.read(pipe, lambda moved: None))
        else:
            task = asyncio.ensure_future(files.write(pipe, memoryview(b"x"), lambda moved: None))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(give_up())  # returns, though a thread is still opening the pipe
