"""The asynchronous client against a running pool: batches, an error per key, and the state of it all.

pykvpool master &
pykvpool node --segment-size 256MiB &
python examples/async_client.py tcp://127.0.0.1:7000
"""

from __future__ import annotations

import asyncio
import sys

from pykvpool.client import Client, PutItem
from pykvpool.errors import KeyNotFound, PoolError


async def main(address: str) -> None:
    async with await Client.connect(address, name="example") as client:
        items = [PutItem(f"block-{number}", bytes([number]) * 65_536) for number in range(16)]
        for item, result in zip(items, await client.put_batch(items), strict=True):
            if isinstance(result, PoolError):
                print(f"{item.key!s}: {result.kind}: {result}")

        # One result per key, in order: a missing one costs the others nothing.
        found = await client.get_batch(["block-0", "no such block", "block-15"])
        print([type(value).__name__ for value in found])
        assert isinstance(found[1], KeyNotFound)

        buffer = bytearray(65_536)
        result = await client.get_into("block-7", buffer)
        print(f"{result.size_bytes} bytes over {result.scheme} from {result.node}, vouched for by {result.vouch.name}")

        state = await client.state()
        print(f"{state.objects} objects on {len(state.segments)} node(s)")
        await client.remove_all("block-*")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:7000"))
    except PoolError as error:
        sys.exit(f"{error.kind}: {error}")
