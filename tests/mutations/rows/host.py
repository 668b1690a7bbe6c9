"""Faults in the work behind an engine's port: jobs, lookups, the ring between an engine and its host's node."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, selections

HOST = "pykvpool/host"
JOBS = f"{HOST}/jobs.py"
WORK = f"{HOST}/work.py"
ASKING = f"{HOST}/lookups.py"
UNDER_WAY = f"{HOST}/agent/under_way.py"
ASKED = f"{HOST}/agent/asked.py"
RANK = f"{HOST}/agent/rank.py"
ATTACHMENT = f"{HOST}/agent/attachment.py"

_ports = selections("host/test_ports.py")
_agent = selections("host/test_agent.py")
_movers = selections("host/test_movers.py")
_work = selections("host/test_port_work.py")
_under_way = selections("host/test_under_way.py")
_attachment = selections("host/test_attachment.py")

_JOBS = (
    Mutation(
        name="a-load-done-though-a-block-is-missing",
        rule="P10: a load brings every block, or has failed",
        file=JOBS,
        old="        if isinstance(result, PoolError):\n            raise result\n",
        new="        if isinstance(result, PoolError):\n            continue\n",
        checks=_ports,
    ),
    Mutation(
        name="a-smaller-block-taken-for-a-whole-one",
        rule="P1: a block of another size is never loaded",
        file=JOBS,
        old="        if result.size_bytes != block_bytes:\n",
        new="        if result.size_bytes > block_bytes:\n",
        checks=_ports,
    ),
    Mutation(
        name="a-save-that-waits-in-a-full-pool",
        rule="P7: what finds no room is dropped, not waited for",
        file=JOBS,
        old="scope=group.scope, wait=False, timeout_s=timeout_s",
        new="scope=group.scope, wait=True, timeout_s=timeout_s",
        checks=_ports,
    ),
    Mutation(
        name="a-save-through-the-node-that-waits-in-a-full-pool",
        rule="P7: what finds no room is dropped, not waited for",
        file=ATTACHMENT,
        old="                    wait=False,\n",
        new="                    wait=True,\n",
        checks=_ports,
    ),
    Mutation(
        name="blocks-behind-a-hole-are-saved",
        rule="a group ends at its first block that was dropped",
        file=JOBS,
        old=(
            "                    tally.dropped(tally.last_reason, len(group.keys) - chunk.stop)\n"
            "                    break\n"
        ),
        new="                    pass\n",
        checks=_movers,
    ),
    Mutation(
        name="a-load-that-failed-goes-on-writing",
        rule="P10: a load reports when nothing can write to its blocks any more",
        file=JOBS,
        old="            task.cancel()\n        await _all_over(tasks)\n",
        new="            task.cancel()\n",
        checks=_movers,
    ),
    Mutation(
        name="a-save-whose-deadline-is-ignored",
        rule="what is not stored in time is dropped",
        file=WORK,
        old="            async with asyncio.timeout(timeout_s), self._saving:\n",
        new="            async with self._saving:\n",
        checks=_work,
    ),
    Mutation(
        name="a-load-whose-deadline-is-ignored",
        rule="a load that takes too long has failed",
        file=WORK,
        old="            async with asyncio.timeout(timeout_s):\n                moved_bytes",
        new="            async with asyncio.timeout(None):\n                moved_bytes",
        checks=_work,
    ),
    Mutation(
        name="a-load-that-was-cancelled-is-done",
        rule="P10: a load that ended early has failed",
        file=WORK,
        old=(
            "            if task.cancelled():\n"
            '                error = Closed("the port was closed")\n'
            "            if error is None:\n"
            "                self._emit(LoadDone"
        ),
        new="            if error is None:\n                self._emit(LoadDone",
        checks=_work,
    ),
    Mutation(
        name="work-that-waits-for-a-lost-master",
        rule="P10: what is under way is given up soon after the connection is gone",
        file=f"{HOST}/access.py",
        old="            self._given_up[task] = None\n            task.cancel()\n",
        new="            self._given_up[task] = None\n",
        checks=_work,
    ),
    Mutation(
        name="a-fence-that-lets-saves-go-on",
        rule="after a fence nothing of earlier saves is stored",
        file=WORK,
        old="            self._fenced[task] = None\n            task.cancel()\n",
        new="            self._fenced[task] = None\n",
        checks=_ports,
    ),
    Mutation(
        name="a-reset-before-saves-are-fenced",
        rule="a reset removes when no earlier save can store any more",
        file=WORK,
        old="                await asyncio.gather(self.fence_and_wait(), *others)\n",
        new="                await asyncio.gather(*others)\n",
        checks=_ports,
    ),
    Mutation(
        name="a-reset-that-forgets-the-other-ranks",
        rule="a reset fences the saves of every rank of the engine",
        file=WORK,
        old="                await asyncio.gather(self.fence_and_wait(), *others)\n",
        new="                await asyncio.gather(self.fence_and_wait())\n",
        checks=selections(
            "host/test_agent.py::test_a_reset_through_one_engine_process_fences_the_saves_of_the_others",
            "host/test_embedded.py",
        ),
    ),
)

_LOOKUPS = (
    Mutation(
        name="a-hold-that-a-release-forgets",
        rule="P6: a hold ends when it is released",
        file=WORK,
        old="        if holds is not None:\n            holds.release()\n        task =",
        new="        task =",
        checks=_ports,
    ),
    Mutation(
        name="a-hold-that-nobody-renews",
        rule="P6: what was found stays until it is released",
        file=WORK,
        old="                holds.keep(lambda: self._lapsed(ident))\n",
        new="",
        checks=_ports,
    ),
    Mutation(
        name="a-lookup-of-one-rank",
        rule="P11: a hit is what every rank has",
        file=ASKING,
        old="            if there:\n                match",
        new="            if there == len(part):\n                match",
        checks=_movers,
    ),
    Mutation(
        name="a-block-that-one-rank-lacks-is-present",
        rule="P11: a hit is what every rank has",
        file=ASKING,
        old="[all(flags) for flags in zip(everywhere",
        new="[any(flags) for flags in zip(everywhere",
        checks=_movers,
    ),
    Mutation(
        name="an-engine-that-dies-keeps-its-holds",
        rule="P6: an engine takes its holds with it",
        file=WORK,
        old="        for lookup_id in list(self._holds):\n            self.release(lookup_id)\n",
        new="",
        checks=selections("host/test_agent.py::test_an_engine_process_that_is_killed_leaves_nothing_behind"),
    ),
)

_AGENT = (
    Mutation(
        name="a-lost-node-whose-jobs-never-end",
        rule="P10: a job is reported, whatever becomes of the node",
        file=RANK,
        old="        self._jobs.fail_all(error)\n",
        new="",
        checks=_agent,
    ),
    Mutation(
        name="a-hold-lost-with-its-node-is-not-told",
        rule="a hold that is gone is told: the request asks again",
        file=ASKED,
        old="            if answered:\n                self.lapsed(Lapsed(lookup_id))\n            else:\n",
        new="            if not answered:\n",
        checks=_agent,
    ),
    Mutation(
        name="a-job-of-the-node-reported-twice",
        rule="P10: a job is reported once",
        file=UNDER_WAY,
        old="        if self._end(event.job_id) is not None:\n            self._emit(event)\n",
        new="        self._end(event.job_id)\n        self._emit(event)\n",
        checks=_under_way,
    ),
    Mutation(
        name="a-copy-for-a-job-that-is-over",
        rule="P10: nothing lands late",
        file=UNDER_WAY,
        old="        under_way = self._jobs.pop(job_id, None)\n",
        new="        under_way = self._jobs.get(job_id)\n",
        checks=_under_way,
    ),
    Mutation(
        name="a-node-that-is-silent-about-a-job-is-waited-for",
        rule="a job's deadline is kept, whatever the node does",
        file=UNDER_WAY,
        old="        timer = loop.call_later(job.timeout_ms / 1_000 + GRACE_S, self._late, job_id)\n",
        new="        timer = loop.call_later(1e9, self._late, job_id)\n",
        checks=_under_way,
    ),
    Mutation(
        name="a-place-used-again-while-the-engine-reads-it",
        rule="P1: a place of the ring is free when the engine has answered",
        file=ATTACHMENT,
        old="                self._give_back_later(place, taken)\n",
        new="                self._ring.give_back(place)\n",
        checks=_attachment,
    ),
    Mutation(
        name="a-place-used-again-while-the-engine-fills-it",
        rule="P1: a place of the ring is free when the engine has answered",
        file=ATTACHMENT,
        old="                self._give_back_later(place, filled)\n                raise\n",
        new="                self._ring.give_back(place)\n                raise\n",
        checks=_attachment,
    ),
    Mutation(
        name="a-place-used-again-while-the-pool-reads-it",
        rule="P1: a place of the ring is free when its put is over",
        file=ATTACHMENT,
        old="                items = [put_item(group, i, [view]) for i, view in zip(part, views, strict=True)]\n",
        new=(
            "                items = [put_item(group, i, [view]) for i, view in zip(part, views, strict=True)]\n"
            "                self._ring.give_back(place)\n"
            "                place = Place(0, 0, 0)\n"
        ),
        checks=_agent,
    ),
    Mutation(
        name="places-that-are-never-given-back",
        rule="a ring serves as long as its engine lives",
        file=ATTACHMENT,
        old="            finally:\n                self._ring.give_back(place)\n",
        new="            finally:\n                pass\n",
        checks=_agent,
    ),
    Mutation(
        name="what-the-engine-could-not-fill-is-stored",
        rule="P1: only what the engine put into the ring is stored",
        file=ATTACHMENT,
        old="                if not await asyncio.shield(filled):\n",
        new="                if await asyncio.shield(filled) is None:\n",
        checks=_attachment,
    ),
    Mutation(
        name="a-node-of-another-pool-is-taken",
        rule="engines of one pool never store in another",
        file=f"{HOST}/agent/attaching.py",
        old="    if where.masters and not set(where.masters) & set(offer.masters):\n",
        new="    if False:\n",
        checks=selections("host/test_place.py"),
    ),
    Mutation(
        name="a-block-counted-as-stored-by-whoever-has-it",
        rule="what the pool has is not stored again",
        file=ATTACHMENT,
        old="                tally.existed(len(chunk) - len(missing))\n",
        new="",
        checks=_ports,
    ),
    Mutation(
        name="a-burst-of-lookups-that-ends-the-attachment",
        rule="an engine says no more than its node reads",
        file=f"{HOST}/agent/outbox.py",
        old="        if not self._waiting and self._stream.buffered_bytes < SEND_HIGH_BYTES:\n",
        new="        if True:\n",
        checks=_agent,
    ),
    Mutation(
        name="a-search-that-breaks-is-the-last-one",
        rule="the next node is found, whatever became of the last search",
        file=RANK,
        old="            except Exception as failure:",
        new="            except PoolError as failure:",
        checks=_agent,
    ),
    Mutation(
        name="a-watch-that-the-next-node-does-not-hear-of",
        rule="what is watched is watched by every node",
        file=RANK,
        old="            self._say(wire.Watch(tuple(self._watched)))\n",
        new="",
        checks=_agent,
    ),
)

MUTATIONS = (*_JOBS, *_LOOKUPS, *_AGENT)
