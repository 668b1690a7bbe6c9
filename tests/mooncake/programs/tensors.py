"""Tensors: put, get, batches, registered memory, tensor parallelism, shards. Needs torch."""

import struct

import torch
from mooncake.store import ParallelAxis, ReadTarget, ReplicateConfig, TensorParallelism
from observe import attempt, note, open_store, registered

store = open_store()
store.remove_all(True)
block, at = registered(store, 65536)
square = torch.arange(24, dtype=torch.float32).reshape(4, 6)


def same(found, wanted):
    """The same numbers in the same shape and dtype; None where there is nothing."""
    return (
        None
        if found is None
        else found.dtype == wanted.dtype and found.shape == wanted.shape and torch.equal(found, wanted)
    )


note("put_tensor", store.put_tensor("t", square))
note("get_tensor", same(store.get_tensor("t"), square))
note("get_tensor of a missing key", store.get_tensor("nobody"))
note("size of a tensor", store.get_size("t"))
stored = store.get("t")
note(
    "how a tensor is stored", (stored[:4], struct.unpack("<HHII", stored[4:16]), struct.unpack("<QQ8q", stored[24:104]))
)
kinds = [
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
]
for kind in kinds:
    tensor = torch.arange(5).to(getattr(torch, kind))
    code, found = store.put_tensor(kind, tensor), store.get_tensor(kind)
    note(
        f"a tensor of {kind}",
        (code, found is not None and found.dtype == tensor.dtype and torch.equal(found.float(), tensor.float())),
    )
note("a tensor of complex numbers", store.put_tensor("complex", torch.zeros(2, dtype=torch.complex64)))
note("a tensor without elements", store.put_tensor("nothing", torch.zeros(0)))
note(
    "a tensor of one number",
    (store.put_tensor("scalar", torch.tensor(3.0)), same(store.get_tensor("scalar"), torch.tensor(3.0))),
)
note("a transposed tensor", (store.put_tensor("turned", square.t()), same(store.get_tensor("turned"), square.t())))
note("a tensor of nine dimensions", store.put_tensor("nine", torch.zeros([1] * 9)))
note("what is no tensor", store.put_tensor("list", [1, 2]))
store.put("bytes", b"x" * 1000)
note("get_tensor of plain bytes", store.get_tensor("bytes"))
note("put_tensor under an empty key", store.put_tensor("", square))
note("put_tensor under an existing key", (store.put_tensor("t", square * 2), same(store.get_tensor("t"), square)))
note("upsert_tensor", (store.upsert_tensor("t", square * 2), same(store.get_tensor("t"), square * 2)))
note("pub_tensor", (store.pub_tensor("p", square, ReplicateConfig()), same(store.get_tensor("p"), square)))
note("upsert_pub_tensor", store.upsert_pub_tensor("p", square + 1, ReplicateConfig()))
note("batch_put_tensor", store.batch_put_tensor(["b1", "b2"], [square, square + 1]))
note("batch_put_tensor with one bad", store.batch_put_tensor(["b3", "b4"], [square, "text"]))
note("batch_get_tensor", [same(found, square) for found in store.batch_get_tensor(["b1", "nobody", "b2"])])
note("batch_upsert_tensor", store.batch_upsert_tensor(["b1"], [square * 3]))
note("batch_pub_tensor", store.batch_pub_tensor(["b5"], [square], ReplicateConfig()))

note("get_tensor_into", same(store.get_tensor_into("b2", at, 65536), square + 1))
note("put_tensor_from", (store.put_tensor_from("from", at, 400), same(store.get_tensor("from"), square + 1)))
note("put_tensor_from of less than the tensor", store.put_tensor_from("less", at, 399))
note("put_tensor_from of more than the tensor", store.put_tensor_from("more", at, 65536))
note("get_tensor_into a buffer too small", store.get_tensor_into("b2", at, 100))
note("get_tensor_into of a missing key", store.get_tensor_into("nobody", at, 65536))
note(
    "batch_get_tensor_into",
    [same(found, square + 1) for found in store.batch_get_tensor_into(["b2", "nobody"], [at, at + 4096], [4096, 4096])],
)
note("batch_put_tensor_from", store.batch_put_tensor_from(["f1"], [at], [400]))
note("upsert_tensor_from", store.upsert_tensor_from("f1", at, 400))
note("batch_upsert_tensor_from", store.batch_upsert_tensor_from(["f1"], [at], [400]))

note("put_tensor_with_tp", store.put_tensor_with_tp("w", square, 0, 2, 0))
note("its shards", (store.is_exist("w"), store.get_size("w_tp_0"), store.get_size("w_tp_1"), store.is_exist("w_tp_2")))
note(
    "get_tensor_with_tp",
    (
        same(store.get_tensor_with_tp("w", 0, 2, 0), square[:2]),
        same(store.get_tensor_with_tp("w", 1, 2, 0), square[2:]),
    ),
)
note(
    "split along columns",
    (store.put_tensor_with_tp("v", square, 0, 3, 1), same(store.get_tensor_with_tp("v", 2, 3, 1), square[:, 4:])),
)
note("an uneven split", (store.put_tensor_with_tp("odd", torch.arange(5), 0, 2, 0), store.is_exist("odd_tp_0")))
note("a split along no dimension", store.put_tensor_with_tp("bad", square, 0, 2, 5))
note("a shard that was stored for another number of ranks", same(store.get_tensor_with_tp("w", 0, 4, 0), square[:1]))
note(
    "tensor parallelism of one",
    (store.put_tensor_with_tp("one", square), same(store.get_tensor_with_tp("one"), square)),
)
note("batch_put_tensor_with_tp", store.batch_put_tensor_with_tp(["x", "y"], [square, square], 0, 2, 1))
note(
    "batch_get_tensor_with_tp",
    [same(found, square[:, 3:]) for found in store.batch_get_tensor_with_tp(["x", "nobody", "y"], 1, 2)],
)
note("pub_tensor_with_tp", store.pub_tensor_with_tp("pw", square, ReplicateConfig(), 0, 2, 0))
note("get_tensor_with_tp_into", same(store.get_tensor_with_tp_into("w", at, 4096, 1, 2, 0), square[2:]))
store.get_into("one", at, 4096)
note(
    "put_tensor_with_tp_from",
    (store.put_tensor_with_tp_from("wf", at, 400, 0, 2, 0), same(store.get_tensor_with_tp("wf", 1, 2, 0), square[2:])),
)


def axis(kind, rank, size, **more):
    made = ParallelAxis()
    made.kind, made.rank, made.size = kind, rank, size
    for name, value in more.items():
        setattr(made, name, value)
    return made


def layout(*axes):
    made = TensorParallelism()
    made.axes = list(axes)
    return made


def target(mode, parallelism=None):
    made = ReadTarget()
    made.mode = mode
    if parallelism is not None:
        made.parallelism = parallelism
    return made


note("put_tensor_with_parallelism, whole", store.put_tensor_with_parallelism("f", square))
note("get_tensor_with_parallelism", same(store.get_tensor_with_parallelism("f"), square))
note(
    "put of shards",
    [
        store.put_tensor_with_parallelism("s", part.contiguous(), layout(axis("tp", rank, 2, split_dim=0)))
        for rank, part in enumerate(square.chunk(2))
    ],
)
note(
    "get of a shard",
    same(store.get_tensor_with_parallelism("s", target("shard", layout(axis("tp", 1, 2, split_dim=0)))), square[2:]),
)
note(
    "get of a shard for other ranks",
    same(store.get_tensor_with_parallelism("s", target("shard", layout(axis("tp", 1, 4, split_dim=0)))), square[1:2]),
)
note("get of the whole from shards", same(store.get_tensor_with_parallelism("s", target("full")), square))
note(
    "get of a shard from a whole",
    same(store.get_tensor_with_parallelism("f", target("shard", layout(axis("tp", 1, 2, split_dim=0)))), square[2:]),
)
both = layout(axis("dp", 0, 2), axis("tp", 1, 2, split_dim=0))
note(
    "a shard of two axes",
    (
        store.put_tensor_with_parallelism("m", square, both),
        same(store.get_tensor_with_parallelism("m", target("shard", both)), square[2:]),
    ),
)
note("an expert", store.put_tensor_with_parallelism("e", square, layout(axis("ep", 0, 2, expert_id=3))))
note("an axis of no kind", store.put_tensor_with_parallelism("n", square, layout(axis("xx", 0, 2))))
note("a rank that is too high", store.put_tensor_with_parallelism("n", square, layout(axis("tp", 2, 2, split_dim=0))))
note("no axes", store.put_tensor_with_parallelism("n", square, layout()))


class Partition:
    rank, size, split_dim = 1, 2, 0


note("writer_partition", store.put_tensor_with_parallelism("wp", square, writer_partition=Partition()))
note(
    "writer_partition and parallelism",
    store.put_tensor_with_parallelism("wp2", square, both, writer_partition=Partition()),
)
note("batch_put_tensor_with_parallelism", store.batch_put_tensor_with_parallelism(["q1", "q2"], [square, square]))
note(
    "batch_get_tensor_with_parallelism",
    [same(found, square) for found in store.batch_get_tensor_with_parallelism(["q1", "nobody"])],
)
note("upsert_tensor_with_parallelism", store.upsert_tensor_with_parallelism("q1", square * 2))
note("get_tensor_with_parallelism_into", same(store.get_tensor_with_parallelism_into("q1", at, 4096), square * 2))
note("put_tensor_with_parallelism_from", store.put_tensor_with_parallelism_from("q3", at, 400))
note("a mode that is none", attempt(lambda: store.get_tensor_with_parallelism("q1", target("something"))))
store.close()
