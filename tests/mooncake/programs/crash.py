"""Calls that a program should not make: before setup, after close, with NULL, memory of nobody, enormous keys.

``crash.py CASE`` makes one of them (in a process of its own, as some stores do not survive it), ``crash.py`` all of
them in one process, ``crash.py --list`` prints their names.
"""

import importlib.util
import sys

from mooncake.store import MooncakeDistributedStore
from observe import MASTER, attempt, memory, note, open_store

HUGE_KEY = "k" * 10_000_000
_block, AT = memory(4096, 7)
UNKNOWN = 0x1234
#: Every method with plausible arguments.
CALLS = {
    "put": ("k", b"x"), "put_batch": (["k"], [b"x"]), "put_parts": ("k", b"x"), "upsert": ("k", b"x"),
    "upsert_parts": ("k", b"x"), "upsert_batch": (["k"], [b"x"]), "get": ("k",), "get_batch": (["k"],),
    "get_buffer": ("k",), "batch_get_buffer": (["k"],), "is_exist": ("k",), "batch_is_exist": (["k"],),
    "get_size": ("k",), "remove": ("k",), "batch_remove": (["k"],), "remove_all": (), "remove_by_regex": ("k",),
    "get_replica_desc": ("k",), "batch_get_replica_desc": (["k"],), "batch_replica_clear": (["k"],),
    "register_buffer": (AT, 100), "unregister_buffer": (AT,), "put_from": ("k", AT, 100), "upsert_from": ("k", AT, 100),
    "get_into": ("k", AT, 100), "batch_put_from": (["k"], [AT], [100]), "batch_upsert_from": (["k"], [AT], [100]),
    "batch_get_into": (["k"], [AT], [100]), "batch_put_from_multi_buffers": (["k"], [[AT]], [[100]]),
    "batch_get_into_multi_buffers": (["k"], [[AT]], [[100]]), "put_from_with_metadata": ("k", AT, AT, 10, 10),
    "get_into_ranges": ([AT], [["k"]], [[[0]]], [[[0]]], [[[1]]]), "batch_put_session_start": (["k"], [10]),
    "batch_put_from_multi_buffer_ranges": (["k"], [[AT]], [[1]], [[0]]), "batch_put_session_end": (["k"],),
    "batch_put_session_revoke": (["k"],), "batch_get_session_start": (["k"],), "batch_get_session_end": (["k"],),
    "batch_get_into_multi_buffer_ranges": (["k"], [[AT]], [[1]], [[0]]), "allocate_and_mount_segment": (16 << 20,),
    "unmount_and_free_segment": (["s"],), "create_copy_task": ("k", ["n"]), "create_move_task": ("k", "n", "m"),
    "query_task": ((1, 2),), "get_hostname": (), "health_check": (), "close": (),
}  # fmt: skip
#: Methods that need torch; TENSOR stands for a tensor.
TENSOR = object()
TENSOR_CALLS = {
    "put_tensor": ("k", TENSOR), "pub_tensor": ("k", TENSOR), "upsert_tensor": ("k", TENSOR), "get_tensor": ("k",),
    "batch_put_tensor": (["k"], [TENSOR]), "batch_get_tensor": (["k"],), "batch_upsert_tensor": (["k"], [TENSOR]),
    "get_tensor_into": ("k", AT, 400), "batch_get_tensor_into": (["k"], [AT], [400]), "put_tensor_from": ("k", AT, 400),
    "batch_put_tensor_from": (["k"], [AT], [400]), "upsert_tensor_from": ("k", AT, 400),
    "put_tensor_with_tp": ("k", TENSOR, 0, 2, 0), "get_tensor_with_tp": ("k", 0, 2),
    "batch_put_tensor_with_tp": (["k"], [TENSOR], 0, 2, 0), "batch_get_tensor_with_tp": (["k"], 0, 2),
    "get_tensor_with_tp_into": ("k", AT, 400, 0, 2, 0), "put_tensor_with_tp_from": ("k", AT, 400, 0, 2, 0),
    "put_tensor_with_parallelism": ("k", TENSOR), "get_tensor_with_parallelism": ("k",),
    "upsert_tensor_with_parallelism": ("k", TENSOR), "batch_put_tensor_with_parallelism": (["k"], [TENSOR]),
    "batch_get_tensor_with_parallelism": (["k"],), "get_tensor_with_parallelism_into": ("k", AT, 400),
    "put_tensor_with_parallelism_from": ("k", AT, 400),
}  # fmt: skip
if importlib.util.find_spec("torch"):
    CALLS |= TENSOR_CALLS
#: Methods that name an object by its key (not a segment, not an expression).
KEYED = [
    name
    for name, arguments in CALLS.items()
    if arguments and arguments[0] in ("k", ["k"]) and not name.endswith(("_regex", "_task"))
]


def made(arguments):
    """The arguments, with a tensor where one belongs."""

    def tensor():
        import torch

        return torch.arange(24, dtype=torch.float32).reshape(4, 6)

    return [
        tensor() if each is TENSOR else [tensor()] if isinstance(each, list) and each and each[0] is TENSOR else each
        for each in arguments
    ]


def unset(method):
    store = MooncakeDistributedStore()
    note(f"{method} before setup", attempt(lambda: getattr(store, method)(*made(CALLS[method]))))


def closed(method):
    store = open_store()
    store.put("k", b"x")
    store.close()
    note(f"{method} after close", attempt(lambda: getattr(store, method)(*made(CALLS[method]))))


def bad_key(method, key, called):
    """A method with a key that it should not have; nothing may be stored under it."""
    store = open_store()
    store.register_buffer(AT, 4096)
    arguments = made(CALLS[method])
    arguments[0] = [key] if isinstance(arguments[0], list) else key
    result = attempt(lambda: getattr(store, method)(*arguments))
    note(f"{method} with {called}", (result, store.is_exist(key)))


def null_put():
    store = open_store()
    note("put_from NULL", (store.put_from("c1", 0, 100), store.is_exist("c1")))


def null_get():
    store = open_store()
    store.put("c2", b"x" * 100)
    note("get_into NULL", store.get_into("c2", 0, 100))


def null_register():
    note("register_buffer of NULL", open_store().register_buffer(0, 100))


def wild_register():
    note("register_buffer of memory of nobody", open_store().register_buffer(UNKNOWN, 100))


def wild_put():
    store = open_store()
    note("put_from memory of nobody", (store.put_from("c3", UNKNOWN, 100), store.is_exist("c3")))


def unregistered_put():
    store = open_store()
    note("put_from unregistered memory", (store.put_from("c4", AT, 100), store.is_exist("c4")))


def unregistered_get():
    store = open_store()
    block, at = memory(100)
    store.put("c5", b"x" * 100)
    note("get_into unregistered memory", (store.get_into("c5", at, 100), bytes(block) == bytes(100)))


def empty_values():
    store = open_store()
    store.put("c12", b"kept")
    calls = {
        "put": ("c13", b""), "put_batch": (["c13"], [b""]), "put_parts": ("c13", b"", b""), "upsert": ("c12", b""),
        "upsert_parts": ("c12", b""), "upsert_batch": (["c12"], [b""]), "upsert_from": ("c12", AT, 0),
        "put_from_with_metadata": ("c13", AT, AT, 0, 0), "batch_put_session_start": (["c13"], [0]),
    }  # fmt: skip
    store.register_buffer(AT, 4096)
    note("empty values", [attempt(lambda name=name: getattr(store, name)(*calls[name])) for name in calls])
    note("what empty values left", (store.get("c12"), store.is_exist("c13")))


def past_the_end():
    store = open_store()
    store.register_buffer(AT, 4096)
    note("put_from past the end of a buffer", (store.put_from("c6", AT + 4000, 200), store.is_exist("c6")))


def past_the_end_get():
    store = open_store()
    block, at = memory(4096)
    store.register_buffer(at, 2048)
    store.put("c7", b"x" * 1000)
    note("get_into past the end of a buffer", (store.get_into("c7", at + 2000, 1000), bytes(block) == bytes(4096)))


def null_multi():
    store = open_store()
    note(
        "batch_put_from_multi_buffers with NULL",
        (store.batch_put_from_multi_buffers(["c8"], [[0, AT]], [[10, 10]]), store.is_exist("c8")),
    )


def null_ranges():
    store = open_store()
    store.put("c9", b"x")
    note("get_into_ranges with NULL", store.get_into_ranges([0], [["c9"]], [[[0]]], [[[0]]], [[[1]]]))


def negative_size():
    store = open_store()
    note("put_from of a negative size", attempt(lambda: store.put_from("c10", AT, -1)))


def wrong_master():
    store = MooncakeDistributedStore()
    note(
        "setup with a wrong master",
        store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", "127.0.0.1:1") < 0,
    )


def wrong_protocol():
    store = MooncakeDistributedStore()
    note(
        "setup with an unknown protocol",
        store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 16 << 20, "carrier-pigeon", "", MASTER) < 0,
    )


def numpy_values():
    import numpy

    store = open_store()
    store.put("c11", numpy.arange(4, dtype=numpy.int32))
    note("put of a numpy array", len(store.get("c11")))


#: By the name of what each observes, so that whoever runs them knows what one that died would have seen.
CASES = {
    **{f"{method} before setup": (lambda method=method: unset(method)) for method in CALLS},
    **{f"{method} after close": (lambda method=method: closed(method)) for method in CALLS},
    **{f"{method} with an empty key": (lambda method=method: bad_key(method, "", "an empty key")) for method in KEYED},
    **{
        f"{method} with a key of 10 MB": (lambda method=method: bad_key(method, HUGE_KEY, "a key of 10 MB"))
        for method in KEYED
    },
    "put_from NULL": null_put,
    "get_into NULL": null_get,
    "register_buffer of NULL": null_register,
    "register_buffer of memory of nobody": wild_register,
    "put_from memory of nobody": wild_put,
    "empty values": empty_values,
    "put_from unregistered memory": unregistered_put,
    "get_into unregistered memory": unregistered_get,
    "put_from past the end of a buffer": past_the_end,
    "get_into past the end of a buffer": past_the_end_get,
    "batch_put_from_multi_buffers with NULL": null_multi,
    "get_into_ranges with NULL": null_ranges,
    "put_from of a negative size": negative_size,
    "setup with a wrong master": wrong_master,
    "setup with an unknown protocol": wrong_protocol,
    "put of a numpy array": numpy_values,
}

if sys.argv[1:] == ["--list"]:
    print("\n".join(CASES))
elif len(sys.argv) > 1:
    CASES[sys.argv[1]]()
else:
    for case in CASES.values():
        try:
            case()
        except ImportError:
            continue
    note("the process is alive", True)
