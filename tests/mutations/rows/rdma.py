"""Faults of the rdma fabric: bytes that have not landed, queue pairs that outlive what they were for, memory that is
given back or kept, queues that overflow, and an owner or a peer that is believed."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, selections

LANE = "pykvpool/fabric/rdma/lane.py"
LINK = "pykvpool/fabric/rdma/link.py"
TRAFFIC = "pykvpool/fabric/rdma/traffic.py"
SLICES = "pykvpool/fabric/rdma/slices.py"
STAGING = "pykvpool/fabric/rdma/staging.py"
LOCAL = "pykvpool/fabric/rdma/local_memory.py"
REGISTRATION = "pykvpool/fabric/rdma/registration.py"
COMPLETIONS = "pykvpool/fabric/rdma/completions.py"
CONNECTING = "pykvpool/fabric/rdma/connecting.py"
GIDS = "pykvpool/fabric/rdma/gids.py"
RAILS = "pykvpool/fabric/rdma/rails.py"
SERVER = "pykvpool/fabric/rdma/server.py"
OWNER = "pykvpool/fabric/rdma/owner_session.py"
SESSION = "pykvpool/fabric/rdma/session.py"
CLIENT = "pykvpool/fabric/rdma/client.py"
CHECKS = "pykvpool/fabric/rdma/wire_checks.py"
LIFETIME = "pykvpool/fabric/verbs/lifetime.py"

_FAULTS = selections("fabric/test_rdma_faults.py")
_MEMORY = selections("fabric/test_rdma_memory.py")
_RAILS = selections("fabric/test_rdma_rails.py")
_LINES = selections("fabric/test_rdma_lines.py")
_LIARS = selections("fabric/test_rdma_liars.py")
_REFUSALS = selections("fabric/test_rdma_refusals.py")
_GPU = selections("fabric/test_rdma_gpu_memory.py")
_CONFORMANCE = selections("fabric/test_conformance.py")

MUTATIONS = (
    # -- landing and repeating -------------------------------------------------------------------------------------
    Mutation(
        name="rdma-a-write-has-landed-when-the-card-has-it",
        rule="design 5: a put has landed when a read behind its last write has completed",
        file=LANE,
        old="                self._acknowledged.append(posted.slice)\n",
        new="                progress.done.append(posted.slice)\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-one-registration-is-confirmed-for-all",
        rule="design 5: a read behind the last write, for each registration",
        file=LANE,
        old="        offsets, self._unconfirmed = list(self._unconfirmed.values()), {}\n",
        new="        offsets, self._unconfirmed = list(self._unconfirmed.values())[-1:], {}\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-the-first-confirming-read-speaks-for-all",
        rule="design 5: landed with the last of the confirming reads",
        file=LANE,
        old="confirms=number == len(offsets) - 1)\n",
        new="confirms=number == 0)\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-confirming-read-goes-beyond-its-key",
        rule="a request stays within one registration",
        file=LANE,
        old="            length = min(CONFIRM_BYTES, self._remote.room(offset))\n",
        new="            length = min(CONFIRM_BYTES, self._remote.size_bytes - offset)\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-failed-request-counts-as-done",
        rule="P1: a failed request has moved nothing",
        file=LANE,
        old="                self._ended_before(number, progress)\n",
        new="                self._ended_before(number + 1, progress)\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-broken-write-is-repeated-without-the-owners-word",
        rule="P2: a broken write is repeated on the owner's word alone",
        file=LINK,
        old="                self._once_more(slice_, error, again=gone)\n",
        new="                self._once_more(slice_, error, again=True)\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-write-without-a-word-is-called-settled",
        rule="P2: what may still land is named uncertain",
        file=LINK,
        old="                slice_.item.in_doubt += 1\n",
        new="                slice_.item.in_doubt += 0\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-what-a-fence-cut-off-is-repeated",
        rule="P2: what the owner ended on purpose is not repeated",
        file=LINK,
        old="        self._break(lane, error, gone=True, again=again)\n",
        new="        self._break(lane, error, gone=True)\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-refused-request-is-repeated-for-ever",
        rule="a request that is refused twice is to blame",
        file=LINK,
        old="        return slice_.refusals >= MAX_REFUSALS or slice_.lost_lanes > self._wanted\n",
        new="        return slice_.lost_lanes > self._wanted\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-confirmation-that-fails-is-nobodys-fault",
        rule="a lane that breaks has somebody to blame",
        file=LANE,
        old="        return self._posted[0].slice or next(iter(self._acknowledged), None)\n",
        new="        return self._posted[0].slice\n",
        checks=_FAULTS,
    ),
    # -- buffers and queue pairs -----------------------------------------------------------------------------------
    Mutation(
        name="rdma-a-queue-pair-outlives-its-lane",
        rule="P2: no card touches memory through a lane that is gone",
        file=LANE,
        old="        self.rail.device.let_go(self._pair.close)\n",
        new="",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-caller-who-gives-up-goes-at-once",
        rule="P2: a transfer ends when it is drained",
        file=TRAFFIC,
        old="        if not call.under_way:\n            given_up.set_result(None)\n",
        new="        given_up.set_result(None)\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-caller-who-gives-up-is-not-waited-for",
        rule="P2: a transfer ends when it is drained",
        file=LINK,
        old="        await drain(given_up)\n",
        new="",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-given-up-slice-is-moved-all-the-same",
        rule="P2: nothing is posted for a caller who has gone",
        file=TRAFFIC,
        old="        if slice_.item.call.given_up is not None:\n"
        "            self._release(slice_)\n"
        "            return\n",
        new="",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-buffer-is-given-back-although-its-queue-pair-lives",
        rule="P2: buffers are given back only after the drain",
        file=LINK,
        old="            self._wait_for(lane, refused, lambda: self._break(lane, error, gone=gone, again=again))\n"
        "            return\n",
        new="            slices = lane.under_way\n            log.error('%s', refused)\n",
        checks=_REFUSALS,
    ),
    Mutation(
        name="rdma-registered-memory-is-let-go-of-under-a-transfer",
        rule="P2: pages stay registered while a card may touch them",
        file=LINK,
        old="            registration.use()\n",
        new="            registration.use()\n            registration._users = 0\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="rdma-memory-of-one-call-stays-registered",
        rule="P3: nothing leaks",
        file=LINK,
        old="            self._memory.give_back(work.borrowed)\n",
        new="            pass\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="rdma-a-slot-is-never-given-back",
        rule="P3: nothing leaks",
        file=TRAFFIC,
        old="            self._staging.give_back(slice_.slot)\n",
        new="",
        checks=_MEMORY,
    ),
    Mutation(
        name="rdma-a-slot-is-given-out-twice",
        rule="P2: no staging memory is used by two transfers",
        file=STAGING,
        old="        return self._large.pop() if self._large else None\n",
        new="        return self._large[-1] if self._large else None\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="rdma-a-slot-is-filled-when-it-has-been-sent",
        rule="P1: what is written is what the caller gave",
        file=TRAFFIC,
        old="        if slice_.item.is_write:\n            slice_.slot.gather(slice_.staged, slice_.length)\n",
        new="",
        checks=_MEMORY,
    ),
    # -- queues ----------------------------------------------------------------------------------------------------
    Mutation(
        name="rdma-a-send-queue-overflows",
        rule="a send queue never overflows: room is kept for every confirmation",
        file=LANE,
        old="len(self._posted) + 1 + kept <= self._depth\n",
        new="len(self._posted) + kept <= self._depth\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-unconfirmed-writes-fill-a-short-queue",
        rule="a send queue never overflows, however short it is",
        file=LANE,
        old="        self._most_unconfirmed = max(1, min(MAX_UNCONFIRMED_CHUNKS, send_depth // 2 - 1))\n",
        new="        self._most_unconfirmed = MAX_UNCONFIRMED_CHUNKS\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-every-request-asks-for-a-completion",
        rule="selective signalling",
        file=LANE,
        old="                self._sequence % SIGNAL_EVERY == 0,\n",
        new="                True,\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-lane-counts-into-its-neighbours-numbers",
        rule="a completion finds the lane that it is for",
        file=LANE,
        old="                self.number << LANE_BITS | posted.number & _LOW,\n",
        new="                self.number << LANE_BITS | posted.number,\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-completion-queue-takes-any-number-of-lanes",
        rule="a completion queue never overruns",
        file=COMPLETIONS,
        old="        if count > self._free:\n            return False\n",
        new="",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-room-in-a-completion-queue-is-never-free-again",
        rule="P3: nothing leaks",
        file=COMPLETIONS,
        old="        if self._poll():\n            self._free += reserved\n",
        new="        if self._poll():\n            pass\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-wake-up-is-lost",
        rule="a queue is armed again before it is emptied",
        file=COMPLETIONS,
        old="            self.queue.take_event()\n            self.queue.arm()\n",
        new="            self.queue.take_event()\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-memory-that-was-taken-back-holds-up-a-dead-device",
        rule="P3: nothing leaks",
        file=LOCAL,
        old="*self._borrowed, *self._leaving, self.arena), device)\n",
        new="*self._borrowed, self.arena), device)\n",
        checks=_MEMORY,
    ),
    # -- chunks and keys -------------------------------------------------------------------------------------------
    Mutation(
        name="rdma-a-slice-crosses-from-one-key-to-the-next",
        rule="a request stays within one registration",
        file=SLICES,
        old="    room = shape.chunk_bytes - end % shape.chunk_bytes\n",
        new="    room = shape.chunk_bytes\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="rdma-a-refused-registration-leaves-chunks-behind",
        rule="P3: nothing leaks",
        file=REGISTRATION,
        old="        for region in regions:\n            region.close()\n        raise explain",
        new="        raise explain",
        checks=_MEMORY,
    ),
    Mutation(
        name="rdma-a-dma-buf-is-named-by-the-gpus-address",
        rule="P1: a request names memory as its registration does",
        file=REGISTRATION,
        old="        return Piece(regions[chunk].address + offset, length, regions[chunk].lkey)\n",
        new="        return Piece(address, length, regions[chunk].lkey)\n",
        checks=_GPU,
    ),
    Mutation(
        name="rdma-a-buffer-that-a-card-refuses-fails-its-transfers",
        rule="what a device refuses to register is copied",
        file=LOCAL,
        old="        if not missing or self._register(kept, missing):\n",
        new="        if kept is not None:\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="rdma-the-limit-on-locked-memory-is-found-out-by-running-into-it",
        rule="memlock is checked at start, with the fix in the message",
        file=SERVER,
        old="    if shortage:\n        raise ConfigError(",
        new="    if shortage and not devices:\n        raise ConfigError(",
        checks=_MEMORY,
    ),
    # -- the owner -------------------------------------------------------------------------------------------------
    Mutation(
        name="rdma-a-readers-queue-pair-takes-writes",
        rule="design 5: reader-only sessions do not write",
        file=OWNER,
        old="        rights = Access.REMOTE_READ | (Access.REMOTE_WRITE if self.peer.writable else Access.NONE)\n",
        new="        rights = Access.REMOTE_READ | Access.REMOTE_WRITE\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-fence-leaves-queue-pairs",
        rule="P2: rdma fences by destroying queue pairs",
        file=SERVER,
        old="(session.peer.name, session.peer.incarnation) == (name, incarnation) and served",
        new="(session.peer.name, session.peer.incarnation) == (name, None) and served",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-fence-is-answered-although-a-queue-pair-lives",
        rule="P2: a fence is answered when nothing can land any more",
        file=SERVER,
        old="                complained = True\n",
        new="                return []\n",
        checks=_REFUSALS,
    ),
    Mutation(
        name="rdma-a-withdrawal-leaves-queue-pairs",
        rule="P5: nothing lands in a withdrawn generation",
        file=SERVER,
        old="        await self._end_surely("
        "gone(generation), lambda _session, served: served.generation == generation)\n",
        new="",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-an-ended-mount-stays-registered",
        rule="P5: no key of the past opens anything",
        file=SERVER,
        old="        self._mounts.pop(generation, None)\n        self._let_go_of(mount)\n",
        new="        self._mounts.pop(generation, None)\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-peer-that-has-gone-leaves-its-queue-pairs",
        rule="P3: nothing leaks",
        file=SERVER,
        old="            session.end(reason, lambda _served: True, again=False)\n",
        new="            pass\n",
        checks=_LINES,
    ),
    Mutation(
        name="rdma-the-owner-gives-its-word-and-destroys-nothing",
        rule="P2: the owner's word is evidence",
        file=OWNER,
        old="                self._destroy(request.handle)\n",
        new="",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-banned-peer-connects-again",
        rule="P2: a fenced and banned session is refused",
        file=OWNER,
        old="        if refusal is not None:\n            raise refusal\n        if len",
        new="        if len",
        checks=_CONFORMANCE,
    ),
    Mutation(
        name="rdma-an-owner-believes-any-number",
        rule="P12: bad input is refused at the door",
        file=OWNER,
        old="        check_connect(request)\n",
        new="",
        checks=_LINES,
    ),
    Mutation(
        name="rdma-a-peer-believes-any-number",
        rule="P12: bad input is refused at the door",
        file=CONNECTING,
        old="            check_connected(answer)\n",
        new="",
        checks=_LIARS,
    ),
    Mutation(
        name="rdma-a-bug-while-connecting-is-silence",
        rule="P10: never a hang",
        file=LINK,
        old="        except Exception as failure:  # a bug must not leave transfers waiting for ever\n",
        new="        except ZeroDivisionError as failure:\n",
        checks=_LIARS,
    ),
    # -- rails and addresses ---------------------------------------------------------------------------------------
    Mutation(
        name="rdma-a-peers-address-is-taken-for-its-owners",
        rule="queue pairs are exchanged with the peer's GID",
        file=CONNECTING,
        old="answer.number, answer.psn, pair.remote.address,",
        new="answer.number, answer.psn, pair.local.address,",
        checks=_RAILS,
    ),
    Mutation(
        name="rdma-framings-are-mixed",
        rule="both ends use the same framing",
        file=GIDS,
        old="    if local.type is not remote.type:\n        return False\n",
        new="",
        checks=_RAILS,
    ),
    Mutation(
        name="rdma-a-lane-counts-before-it-has-proved-itself",
        rule="other GIDs are tried when the first request fails",
        file=CONNECTING,
        old="            await _prove(lane)\n        except",
        new="            pass\n        except",
        checks=_RAILS,
    ),
    Mutation(
        name="rdma-a-lost-rail-keeps-its-lanes",
        rule="a rail that dies is dropped and the rest goes on",
        file=CLIENT,
        old="            link.on_rail_lost(rail, error)\n",
        new="            pass\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-an-owner-does-not-say-that-its-rail-is-lost",
        rule="a rail that dies is dropped and the rest goes on",
        file=SERVER,
        old="            self._end(error, lambda session, served: served.rail is rail, again=True)\n",
        new="            pass\n",
        checks=_FAULTS,
    ),
    Mutation(
        name="rdma-a-rail-that-was-long-away-is-forgotten",
        rule="every rail of both ends is used",
        file=LINK,
        old="        pause_s = MEND_PAUSE_S if staying < self._wanted else LOOK_AGAIN_S\n",
        new="        pause_s = MEND_PAUSE_S if staying < self._wanted else 1e9\n",
        checks=_RAILS,
    ),
    Mutation(
        name="rdma-lanes-that-are-not-needed-any-more-stay",
        rule="P3: nothing leaks",
        file=LINK,
        old="            self._let_go_of(there)\n",
        new="            pass\n",
        checks=_RAILS,
    ),
    Mutation(
        name="rdma-a-vanished-device-is-never-closed",
        rule="P3: nothing leaks",
        file=LIFETIME,
        old="            if error.errno in GONE:\n                self._gone()\n",
        new="",
        checks=_REFUSALS,
    ),
    Mutation(
        name="rdma-a-session-waits-for-ever-for-an-owner",
        rule="P10: never a hang",
        file=SESSION,
        old="            async with asyncio.timeout(timeout_s):\n                said = await future\n",
        new="            said = await future\n",
        checks=_LINES,
    ),
)
