"""Registered memory: put_from, get_into, their batch, multi-buffer and range forms, metadata, upserts."""

from observe import memory, note, open_store, pattern, registered

store = open_store()
store.remove_all(True)
source, at = registered(store, 4096)
source[:] = pattern(4096)
target, to = registered(store, 4096)


def clear():
    target[:] = bytes(4096)


note("put_from", store.put_from("a", at, 1000))
note("get of what was put_from", store.get("a") == pattern(1000 + 3096)[:1000])
note("put_from of an existing key", store.put_from("a", at + 10, 900))
note("get_into", (store.get_into("a", to, 4096), bytes(target[:1000]) == bytes(source[:1000]), target[1000]))
note("get_into of a missing key", store.get_into("nobody", to, 4096))
note("get_into of exactly the size", store.get_into("a", to + 100, 1000))
clear()
note("get_into of less than the size", (store.get_into("a", to, 999), bytes(target) == bytes(4096)))
note(
    "put_from in the middle of a buffer",
    (store.put_from("middle", at + 500, 100), store.get("middle")[:1] == bytes([source[500]])),
)
note("put_from of no bytes", (store.put_from("zero", at, 0), store.is_exist("zero")))
note("get_into of no bytes", store.get_into("a", to, 0))

note("batch_put_from", store.batch_put_from(["b1", "b2"], [at, at + 100], [100, 200]))
note("batch_put_from with one bad size", store.batch_put_from(["b3", "b4"], [at, at], [100, 0]))
note("batch_put_from with unequal lists", store.batch_put_from(["b5"], [at, at], [1, 1]))
note("batch_put_from of nothing", store.batch_put_from([], [], []))
note("batch_get_into", store.batch_get_into(["b1", "nobody", "b2"], [to, to + 200, to + 400], [100, 100, 200]))
note("what batch_get_into read", bytes(target[400:600]) == bytes(source[100:300]))
note("batch_get_into with one buffer too small", store.batch_get_into(["b1", "b2"], [to, to + 200], [100, 199]))
note("batch_get_into with unequal lists", store.batch_get_into(["b1"], [to, to], [100]))

note(
    "batch_put_from_multi_buffers",
    store.batch_put_from_multi_buffers(["m1", "m2"], [[at, at + 1000, at + 50], [at]], [[10, 20, 30], [40]]),
)
note("sizes of those", (store.get_size("m1"), store.get_size("m2")))
note("gathered in order", store.get("m1") == bytes(source[0:10]) + bytes(source[1000:1020]) + bytes(source[50:80]))
note(
    "batch_get_into_multi_buffers",
    store.batch_get_into_multi_buffers(
        ["m1", "nobody", "m2"], [[to, to + 100], [to + 300], [to + 200]], [[25, 35], [1], [40]]
    ),
)
note("scattered in order", bytes(target[0:25]) + bytes(target[100:135]) == store.get("m1"))
note("batch_get_into_multi_buffers, in the same node", store.batch_get_into_multi_buffers(["m2"], [[to]], [[40]], True))
note(
    "batch_get_into_multi_buffers into more than needed",
    store.batch_get_into_multi_buffers(["m2"], [[to, to + 30]], [[30, 30]]),
)
note(
    "batch_get_into_multi_buffers into less than needed",
    store.batch_get_into_multi_buffers(["m2"], [[to, to + 30]], [[30, 9]]),
)
note("batch_put_from_multi_buffers, an existing key", store.batch_put_from_multi_buffers(["m1"], [[at]], [[10]]))
note("batch_put_from_multi_buffers without buffers", store.batch_put_from_multi_buffers(["m3"], [[]], [[]]))
note("batch_put_from_multi_buffers with unequal lists", store.batch_put_from_multi_buffers(["m4"], [[at, at]], [[10]]))

store.put("r1", bytes(range(256)))
store.put("r2", bytes(range(100)))
clear()
note(
    "get_into_ranges",
    store.get_into_ranges(
        [to, to + 1000],
        [["r1", "r2"], ["r2", "r1"]],
        [[[0, 20], [8]], [[4], [16]]],
        [[[1, 30], [2]], [[0], [10]]],
        [[[4, 3], [5]], [[6], [4]]],
    ),
)
note(
    "what the ranges hold",
    (bytes(target[0:4]), bytes(target[20:23]), bytes(target[8:13]), bytes(target[1004:1010]), bytes(target[1016:1020])),
)
note(
    "get_into_ranges with a missing key",
    store.get_into_ranges([to], [["nobody", "r2"]], [[[0], [1]]], [[[0], [0]]], [[[1], [1]]]),
)
note("get_into_ranges past the object", store.get_into_ranges([to], [["r2"]], [[[0]]], [[[95]]], [[[6]]]))
note("get_into_ranges past the buffer", store.get_into_ranges([to], [["r2"]], [[[4095]]], [[[0]]], [[[2]]]))
note("get_into_ranges of no bytes", store.get_into_ranges([to], [["r2"]], [[[0]]], [[[0]]], [[[0]]]))
note("get_into_ranges with unequal fragments", store.get_into_ranges([to], [["r2"]], [[[0]]], [[[0, 1]]], [[[1]]]))
note("get_into_ranges with unequal buffers", store.get_into_ranges([to], [["r1"], ["r2"]], [[[0]]], [[[0]]], [[[1]]]))
note("get_into_ranges of nothing", store.get_into_ranges([], [], [], [], []))

note("put_from_with_metadata", (store.put_from_with_metadata("meta", at, at + 1000, 100, 10), store.get_size("meta")))
note("metadata comes first", store.get("meta") == bytes(source[1000:1010]) + bytes(source[0:100]))
note("upsert_from", (store.upsert_from("a", at, 10), store.get("a") == bytes(source[0:10])))
note(
    "batch_upsert_from",
    (store.batch_upsert_from(["a", "new"], [at + 1, at + 2], [5, 6]), store.get_size("a"), store.get_size("new")),
)

note("register_buffer twice", store.register_buffer(at, 4096))
note("register_buffer that overlaps", store.register_buffer(at + 100, 50))
note("unregister_buffer", store.unregister_buffer(at))
note("unregister_buffer twice", store.unregister_buffer(at))
note("unregister_buffer of something else", store.unregister_buffer(12345))
note("register_buffer after unregister_buffer", store.register_buffer(at, 4096))
other, elsewhere = memory(100)
note("register_buffer of no bytes", store.register_buffer(elsewhere, 0))
note("close with registered buffers", store.close())
