"""Two nodes: copies on both, reading across, and a node that is killed in the middle of it.

The second node is a process of its own (this file with the argument "node"), so that it can be killed.
"""

import subprocess
import sys

from mooncake.store import ReplicateConfig
from observe import note, open_store, pattern, registered

if sys.argv[1:] == ["node"]:
    node = open_store()
    print(node.get_hostname(), flush=True)
    sys.stdin.read()
    sys.exit()

store = open_store()
store.remove_all(True)
child = subprocess.Popen([sys.executable, __file__, "node"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
other = child.stdout.readline().strip()

both = ReplicateConfig()
both.replica_num = 2
note("put of two copies", store.put("two", b"on both nodes", both))
endpoints = {
    each.get_memory_descriptor().buffer_descriptor.transport_endpoint for each in store.get_replica_desc("two")
}
note("they are on two nodes", len(endpoints))
note("they are named as get_hostname names them", endpoints == {store.get_hostname(), other})
note("get of what has two copies", store.get("two"))

there = ReplicateConfig()
there.preferred_segment = other
note("put on the other node", store.put("there", b"over there", there))
[only] = store.get_replica_desc("there")
note("it is on the other node", only.get_memory_descriptor().buffer_descriptor.transport_endpoint == other)
note("get from the other node", store.get("there"))

size = 1 << 20
block, at = registered(store, 2 * size)
block[:size] = pattern(size)
note("zero copy to the other node", store.put_from("large", at, size, there))
note(
    "zero copy from the other node",
    (store.get_into("large", at + size, size), bytes(block[size:]) == bytes(block[:size])),
)
keys = [f"many{i}" for i in range(32)]
note("32 objects with two copies", store.put_batch(keys, [pattern(1000, i) for i in range(32)], both))

child.kill()
child.wait()
note(
    "get of 32 objects with two copies after one node was killed",
    sum(store.get(key) == pattern(1000, i) for i, key in enumerate(keys)),
)
note("get of what only the killed node had", store.get("there"))
note("get_into of what only the killed node had", store.get_into("large", at, size) < 0)
after = [store.put(f"after{i}", pattern(1000, i)) for i in range(16)]
note("16 puts right after a node was killed all succeed", after == [0] * 16)
note(
    "what they stored can be read", sum(store.get(f"after{i}") == pattern(1000, i) for i in range(16)) == after.count(0)
)
store.close()
