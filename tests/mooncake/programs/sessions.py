"""Objects written and read in several calls: put and get sessions."""

from observe import note, open_store, pattern, registered

store = open_store()
store.remove_all(True)
block, at = registered(store, 4096)
block[:] = pattern(4096)

note("batch_put_session_start", store.batch_put_session_start(["a", "b"], [100, 50]))
note("a session's object is not there yet", store.is_exist("a"))
note(
    "batch_put_from_multi_buffer_ranges",
    store.batch_put_from_multi_buffer_ranges(
        ["a", "a"], [[at], [at + 200, at + 300]], [[50], [25, 25]], [[0], [50, 75]]
    ),
)
note("batch_put_session_end", store.batch_put_session_end(["a"]))
note("what the session wrote", store.get("a") == bytes(block[0:50]) + bytes(block[200:225]) + bytes(block[300:325]))
note("batch_put_session_revoke", store.batch_put_session_revoke(["b"]))
note("a revoked object", store.is_exist("b"))
note("batch_put_session_start of an existing key", store.batch_put_session_start(["a"], [1]))
note("batch_put_session_start of a key twice", store.batch_put_session_start(["c", "c"], [10, 10]))
note("ranges past the object", store.batch_put_from_multi_buffer_ranges(["c"], [[at]], [[11]], [[0]]))
note("ranges without a session", store.batch_put_from_multi_buffer_ranges(["d"], [[at]], [[1]], [[0]]))
note("end of a session with holes", store.batch_put_session_end(["c"]))
note("end and revoke without a session", (store.batch_put_session_end(["d"]), store.batch_put_session_revoke(["d"])))

note("batch_get_session_start", store.batch_get_session_start(["a", "nobody"]))
note(
    "batch_get_into_multi_buffer_ranges",
    store.batch_get_into_multi_buffer_ranges(["a"], [[at + 1000, at + 1050]], [[10, 20]], [[5, 60]]),
)
note("what was read", bytes(block[1000:1010]) + bytes(block[1050:1070]) == store.get("a")[5:15] + store.get("a")[60:80])
note("reading past the object", store.batch_get_into_multi_buffer_ranges(["a"], [[at]], [[100]], [[1]]))
note("reading without a session", store.batch_get_into_multi_buffer_ranges(["nobody"], [[at]], [[1]], [[0]]))
note("batch_get_session_end", store.batch_get_session_end(["a"]))
note("reading after the session", store.batch_get_into_multi_buffer_ranges(["a"], [[at]], [[1]], [[0]]))
store.close()
