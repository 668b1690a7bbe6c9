"""From a command to the event loop and back: signals clean up first."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from pykvpool.cli.boundary import Terminated
from pykvpool.cli.running import all_of, run
from pykvpool.errors import PoolFull


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_takes_effect_after_everything_was_cleaned_up(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    cleaned = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(raised):
        run(main)
    assert cleaned == [True]


def test_a_result_is_returned_and_an_error_raised() -> None:
    async def fine() -> int:
        return 7

    async def fail() -> None:
        raise PoolFull("full")

    assert run(fine) == 7
    with pytest.raises(PoolFull):
        run(fail)


async def test_the_first_error_of_many_ends_the_others_and_is_raised_itself() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise PoolFull("full")

    async def nested() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    with pytest.raises(PoolFull):
        await all_of([wait(), nested(), wait()])
    assert ended == [True, True]


def test_a_second_sigterm_does_not_break_off_what_is_being_cleaned_up() -> None:
    cleaned = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(5):  # long enough for the loop to see it
                await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(Terminated):
        run(main)
    assert cleaned == [True]
