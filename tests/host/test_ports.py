"""What engines may count on, wherever the work of their port is done; told as scenarios."""

from __future__ import annotations

import threading

import pytest

from pykvpool.core.config import CoreConfig
from pykvpool.host.port import Found, Lapsed, Question, Removed
from tests.host.stage import MIB, OTHER_MODEL, OTHER_RANK, SCOPE, Memory, chain, until


@pytest.fixture(params=["inproc", "tcp", "shm"])
def any_pool(request, make_pool):
    return make_pool(fabrics=(request.param,)).start()


def test_saved_blocks_come_back_byte_for_byte_in_other_places(any_pool, attach):
    writer, reader = attach(any_pool, "a").connected(), attach(any_pool, "b").connected()
    source, target = Memory(seed=1).fill(), Memory()
    keys = chain(40)

    saved = writer.save(source.group(keys, range(1, 41)))
    assert (saved.stored, saved.existed, saved.dropped) == (40, 0, 0)
    assert saved.bytes_stored == 40 * source.block_bytes

    places = [63 - i for i in range(40)]
    loaded = reader.load(target.group(keys, places))
    assert loaded.loaded and loaded.bytes_loaded == 40 * source.block_bytes
    assert [target.block(place) for place in places] == [source.block(i) for i in range(1, 41)]
    assert target.block(0) == bytes(target.block_bytes), "a block that is not of the job was written"


def test_what_the_pool_has_is_not_stored_again(pool, attach):
    engine, memory = attach(pool).connected(), Memory().fill()
    engine.save(memory.group(chain(10), range(10)))
    saved = engine.save(memory.group(chain(16), range(16)))
    assert (saved.stored, saved.existed, saved.dropped) == (6, 10, 0)
    assert pool.objects() == 16


def test_groups_of_one_job_are_kept_apart(pool, attach):
    engine = attach(pool).connected()
    full, window = Memory(seed=1).fill(), Memory(layers=1, seed=2).fill()
    keys = chain(5)
    saved = engine.save(full.group(keys, range(5)), window.group(keys, range(10, 15), OTHER_RANK))
    assert saved.stored == 10
    here, there = Memory(), Memory(layers=1)
    assert engine.load(here.group(keys, range(5)), there.group(keys, range(5), OTHER_RANK)).loaded
    assert here.block(3) == full.block(3)
    assert there.block(3) == window.block(13)


def test_p7_a_full_pool_drops_saves_at_once_and_says_why(make_pool, attach):
    pool = make_pool(size_bytes=MIB).start()
    engine = attach(pool).connected()
    memory = Memory(blocks=8, layers=1, piece_bytes=128 << 10).fill()  # 256 KiB a block
    first = engine.save(memory.group(chain(3, "x"), range(3)))
    assert first.stored == 3
    held = engine.lookup(Question((SCOPE,), chain(3, "x")))
    assert held.found == (Found(3),)

    # What is held cannot be evicted; a job that waited for room would end by its deadline alone, and this has none.
    second = engine.save(memory.group(chain(8, "y"), range(8)), timeout_ms=10_000_000)
    assert second.stored + second.dropped == 8
    assert second.reasons == {"PoolFull": second.dropped} and second.dropped >= 7

    engine.port.release(held.lookup_id)
    until(lambda: engine.save(memory.group(chain(2, "z"), range(2))).stored == 2)


def test_a_load_brings_all_blocks_or_has_failed(pool, attach):
    engine, memory = attach(pool).connected(), Memory().fill()
    engine.save(memory.group(chain(10), range(10)))
    done = engine.load(Memory().group((*chain(10), b"missing"), range(11)))
    assert not done.loaded and done.reason == "KeyNotFound" and "missing" in done.error
    assert engine.look() == [], "it was reported once"


def test_a_block_of_another_size_is_never_loaded(pool, attach):
    engine = attach(pool).connected()
    engine.save(Memory(layers=1).fill().group(chain(2), range(2)))
    larger = engine.load(Memory(layers=2).group(chain(2), range(2)))
    assert not larger.loaded and larger.reason == "KeyConflict"
    engine.save(Memory(layers=3).fill().group(chain(2, "b"), range(2)))
    smaller = engine.load(Memory(layers=2).group(chain(2, "b"), range(2)))
    assert not smaller.loaded and smaller.reason == "InvalidArgument"


def test_an_empty_job_ends_well(pool, attach):
    engine, memory = attach(pool).connected(), Memory()
    assert engine.save().dropped == 0
    assert engine.load(memory.group((), ())).loaded
    assert engine.lookup().found == ()


def test_a_lookup_counts_what_every_rank_has(pool, attach):
    engine, memory = attach(pool).connected(), Memory().fill()
    keys = chain(12)
    engine.save(memory.group(keys, range(12)), memory.group(keys[:7], range(7), OTHER_RANK))
    both = engine.lookup(Question((SCOPE, OTHER_RANK), keys), Question((SCOPE,), keys))
    assert both.found == (Found(7), Found(12))
    assert engine.lookup(Question((SCOPE, OTHER_MODEL), keys)).found == (Found(0),)


def test_a_lookup_says_which_blocks_are_there_where_a_window_needs_only_the_end(pool, attach):
    engine, memory = attach(pool).connected(), Memory().fill()
    keys = chain(6)
    engine.save(memory.group(keys[2:], range(2, 6)), memory.group(keys[:5], range(5), OTHER_RANK))
    answer = engine.lookup(Question((SCOPE, OTHER_RANK), keys, presence=True))
    assert answer.found == (Found(0, bytes([0, 0, 1, 1, 1, 0])),)


def test_what_a_lookup_found_stays_until_it_is_released(make_pool, attach):
    pool = make_pool(size_bytes=MIB).start(CoreConfig(lease_ms=2_000))
    engine = attach(pool).connected()
    memory = Memory(blocks=4, layers=1, piece_bytes=128 << 10).fill()
    engine.save(memory.group(chain(2, "kept"), range(2)))
    held = engine.lookup(Question((SCOPE,), chain(2, "kept")))
    [(lease, ends)] = pool.leases().items()
    until(lambda: pool.leases()[lease] > ends, "it is not renewed")
    for number in range(4):
        engine.save(memory.group(chain(3, f"flood{number}"), range(3)))
    assert engine.load(Memory(4, 1, 128 << 10).group(chain(2, "kept"), range(2))).loaded
    engine.port.release(held.lookup_id)
    until(lambda: not pool.leases(), "the lease was not given up")


def test_a_lookup_that_is_released_before_its_answer_never_answers(pool, attach):
    engine = attach(pool).connected()
    for _ in range(20):
        engine.port.release(engine.begin_lookup(Question((SCOPE,), chain(100))))
    last = engine.lookup(Question((SCOPE,), chain(3)))
    assert last.found == (Found(0),)
    assert engine.look() == []
    until(lambda: not pool.leases())


def test_a_hold_that_is_lost_with_the_master_is_told(make_pool, attach):
    pool = make_pool().start(CoreConfig(lease_ms=300))
    engine, memory = attach(pool).connected(), Memory().fill()
    engine.save(memory.group(chain(2), range(2)))
    held = engine.lookup(Question((SCOPE,), chain(2)))
    pool.kill_master()
    pool.start()
    assert engine.end_of(held.lookup_id) == Lapsed(held.lookup_id)


def test_p9_the_engines_thread_never_waits_for_the_ports(pool, attach):
    """Whatever holds the port's thread up: here it stands still altogether."""
    engine, memory = attach(pool).connected(), Memory().fill()
    go_on = threading.Event()
    engine.port._thread.post(go_on.wait)
    asked = []
    for number in range(300):
        asked.append(engine.begin_save(memory.group(chain(2, f"s{number}"), range(2))))
        asked.append(engine.begin_load(memory.group(chain(2, f"s{number}"), range(2, 4))))
        asked.append(engine.begin_lookup(Question((SCOPE,), chain(2))))
        engine.port.release(engine.begin_lookup(Question((SCOPE,), chain(2))))
        engine.port.watch((SCOPE,))
        assert engine.look() == []
    engine.port.fence()
    go_on.set()
    for ident in asked:
        engine.end_of(ident)


def test_p9_the_pool_may_be_absent_at_the_start(make_pool, attach):
    pool = make_pool()
    pool.start(nodes=0)
    pool.kill_master()  # its port is known now, and nobody listens
    engine, memory = attach(pool), Memory().fill()
    assert not engine.port.connected
    saved = engine.save(memory.group(chain(3), range(3)), timeout_ms=10_000_000)
    assert (saved.dropped, saved.reasons) == (3, {"Unavailable": 3})
    loaded = engine.load(memory.group(chain(3), range(3)), timeout_ms=10_000_000)
    assert not loaded.loaded and loaded.reason == "Unavailable"
    assert engine.lookup(Question((SCOPE,), chain(3)), timeout_ms=10_000_000).reason == "Unavailable"

    pool.start()
    assert engine.connected().save(memory.group(chain(3), range(3))).stored == 3


def test_p10_a_master_that_dies_under_a_job_ends_it_soon_and_the_next_life_is_found(pool, attach):
    engine, memory = attach(pool).connected(), Memory().fill()
    engine.save(memory.group(chain(3), range(3)))
    pool.kill_master()
    done = engine.load(memory.group(chain(3), range(3)), timeout_ms=10_000_000)
    assert not done.loaded
    pool.start()
    engine.connected()
    until(lambda: engine.save(memory.group(chain(3, "new"), range(3)), timeout_ms=1_000).stored == 3)


def test_a_fence_ends_saves_and_each_reports_once(pool, attach):
    engine, memory = attach(pool).connected(), Memory(blocks=512, piece_bytes=4 << 10).fill()
    jobs = [engine.begin_save(memory.group(chain(512, f"job{number}"), range(512))) for number in range(8)]
    engine.port.fence()
    ends = [engine.end_of(job) for job in jobs]
    assert all(end.stored + end.existed + end.dropped == 512 for end in ends)
    assert ends[-1].reasons == {"fenced": 512}
    assert engine.save(memory.group(chain(2, "after"), range(2))).stored == 2
    assert engine.look() == []


def test_a_reset_leaves_nothing_of_its_scopes_and_everything_of_others(pool, attach):
    engine, memory = attach(pool).connected(), Memory(blocks=256).fill()
    engine.save(memory.group(chain(9), range(9)), memory.group(chain(4), range(4), OTHER_MODEL))
    held = engine.lookup(Question((SCOPE,), chain(9)))
    under_way = engine.begin_save(memory.group(chain(256, "late"), range(256), OTHER_RANK))
    assert engine.port.reset((SCOPE, OTHER_RANK), 10.0) is True
    assert engine.end_of(under_way).stored <= 256
    assert engine.lookup(Question((SCOPE,), chain(9))).found == (Found(0),), "a lease does not save what is reset"
    assert engine.lookup(Question((OTHER_RANK,), chain(256, "late"))).found == (Found(0),)
    assert engine.lookup(Question((OTHER_MODEL,), chain(4))).found == (Found(4),)
    assert held.found == (Found(9),)


def test_a_reset_without_a_pool_is_not_confirmed(make_pool, attach):
    pool = make_pool()
    pool.start(nodes=0)
    pool.kill_master()
    engine = attach(pool)
    assert engine.port.reset((SCOPE,), 5.0) is False


def removed(engine, count):
    """Keys that the port says have left SCOPE, once there are so many."""
    keys = set()

    def enough() -> bool:
        for event in [event for event in engine.look() if isinstance(event, Removed)]:
            engine.look().remove(event)
            assert event.scope == SCOPE
            keys.update(event.keys)
        return len(keys) >= count

    until(enough, "it was not told")
    return keys


def test_a_port_tells_of_blocks_that_leave_the_scopes_it_watches(make_pool, attach):
    pool = make_pool(size_bytes=MIB).start()
    engine, other = attach(pool, "a").connected(), attach(pool, "b").connected()
    memory = Memory(blocks=8, layers=1, piece_bytes=64 << 10).fill()  # eight blocks fill the pool
    engine.port.watch((SCOPE, OTHER_RANK))
    until(lambda: len(pool.on_loop(lambda: dict(pool.core._context.watching.by_scope))) == 2)
    other.save(memory.group(chain(4), range(4)), memory.group(chain(2, "x"), range(2), OTHER_MODEL))
    other.save(memory.group(chain(8, "flood"), range(8), OTHER_MODEL))
    assert removed(engine, 4) == set(chain(4)), "evicted by somebody else"
    other.port.reset((OTHER_MODEL,), 10.0)
    other.save(memory.group(chain(3, "n"), range(3)))
    assert other.port.reset((SCOPE,), 10.0) is True
    assert removed(engine, 3) == set(chain(3, "n"))
    assert not [event for event in other.look() if isinstance(event, Removed)], "it does not watch"


def test_a_port_that_lost_sight_of_a_scope_says_so(pool, attach):
    engine = attach(pool).connected()
    engine.port.watch((SCOPE,))
    until(lambda: pool.on_loop(lambda: bool(pool.core._context.watching.by_scope)))
    pool.kill_master()
    pool.start()
    assert engine.take(lambda event: isinstance(event, Removed)) == Removed(SCOPE, ())
    memory = Memory().fill()
    until(lambda: pool.on_loop(lambda: bool(pool.core._context.watching.by_scope)))
    until(lambda: engine.save(memory.group(chain(2), range(2)), timeout_ms=1_000).stored == 2)
    assert engine.port.reset((SCOPE,), 10.0) is True
    assert removed(engine, 2) == set(chain(2))


def test_closing_lets_saves_finish(pool, attach):
    engine, memory = attach(pool).connected(), Memory(blocks=256, piece_bytes=4 << 10).fill()
    jobs = [engine.begin_save(memory.group(chain(64, f"job{number}"), range(64))) for number in range(6)]
    engine.port.close(20.0)
    assert sum(engine.end_of(job).stored for job in jobs) == 6 * 64
    # A closed port answers still: what was taken is told, once.
    assert engine.save(memory.group(chain(1, "x"), range(1))).reasons == {"Closed": 1}
    assert engine.load(memory.group(chain(1, "x"), range(1))).reason == "Closed"
    assert engine.lookup(Question((SCOPE,), chain(1))).reason == "Closed"
    assert engine.port.reset((SCOPE,), 1.0) is False
    engine.port.release(1)
    engine.port.fence()
    engine.port.close(0.0)


def test_closing_at_once_ends_what_is_under_way(pool, attach):
    engine, memory = attach(pool).connected(), Memory(blocks=512, piece_bytes=4 << 10).fill()
    engine.save(memory.group(chain(200), range(200)))
    save = engine.begin_save(memory.group(chain(512, "b"), range(512)))
    load = engine.begin_load(memory.group(chain(200), range(200)))
    engine.port.close(0.0)
    assert sum(vars_of(engine.end_of(save))) == 512
    assert engine.end_of(load).job_id == load


def vars_of(saved):
    return saved.stored, saved.existed, saved.dropped
