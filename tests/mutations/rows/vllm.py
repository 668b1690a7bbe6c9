"""Faults in the vLLM connector: what is looked up, loaded, saved and held, who is told, and under which key."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, selections

VLLM = "connector/pykvpool_connector/vllm"
SIDE = f"{VLLM}/scheduler/side.py"
HITS = f"{VLLM}/scheduler/hits.py"
LOADS = f"{VLLM}/scheduler/loads.py"
LOOKUPS = f"{VLLM}/scheduler/lookups.py"
PINS = f"{VLLM}/scheduler/pins.py"
SAVES = f"{VLLM}/scheduler/saves.py"
WORKER = f"{VLLM}/worker/side.py"
IDENTITY = f"{VLLM}/identity.py"

_side = selections("vllm/test_scheduler_side.py")
_hits = selections("vllm/test_hits.py")
_worker = selections("vllm/test_worker.py")
_identity = selections("vllm/test_identity.py")

_LOOKING_UP = (
    Mutation(
        name="a-lookup-asked-anew-at-every-call",
        rule="P9: a hook that is called for each waiting request in each step does no I/O",
        file=SIDE,
        old="        ask = tracked.ask or self._ask(tracked)\n",
        new="        ask = self._ask(tracked)\n",
        checks=_side,
    ),
    Mutation(
        name="no-token-left-to-compute",
        rule="P11: a hit leaves one token, for its logits",
        file=HITS,
        old="        return (tokens - 1) // self.unit * self.unit\n",
        new="        return tokens // self.unit * self.unit\n",
        checks=_hits,
    ),
    Mutation(
        name="a-window-asked-for-as-a-prefix",
        rule="P11: a sliding window needs only its end",
        file=HITS,
        old='                presence=rule.kind == "window",\n',
        new="                presence=False,\n",
        checks=_hits,
    ),
    Mutation(
        name="a-window-with-a-hole-taken-for-whole",
        rule="P11: every block under the window is there",
        file=HITS,
        old="    return end if missing < 0 else (missing - proof) * rule.block_tokens\n",
        new="    return end\n",
        checks=_hits,
    ),
    Mutation(
        name="a-window-that-begins-one-block-late",
        rule="P11: every block under the window is there",
        file=HITS,
        old="    return max(0, end - rule.window_tokens + 1) // rule.block_tokens\n",
        new="    return max(0, end - rule.window_tokens) // rule.block_tokens + 1\n",
        checks=_hits,
    ),
    Mutation(
        name="a-drafters-last-block-taken-without-proof",
        rule="P11: what a drafter stores for a block's last token depends on the next one",
        file=HITS,
        old="                upper = min(upper, (answer.count - proof) * rule.block_tokens)\n",
        new="                upper = min(upper, answer.count * rule.block_tokens)\n",
        checks=_hits,
    ),
    Mutation(
        name="a-failed-load-is-offered-again",
        rule="P10: a request whose load failed is computed (vLLM PR#55297)",
        file=SIDE,
        old="                tracked.load_failed = True\n",
        new="",
        checks=_side,
    ),
    Mutation(
        name="what-another-connector-fills-is-looked-up",
        rule="a request with do_remote_prefill is none of ours",
        file=SIDE,
        old='        if request.kv_transfer_params and request.kv_transfer_params.get("do_remote_prefill"):\n',
        new="        if False:\n",
        checks=_side,
    ),
    Mutation(
        name="a-lookup-waited-for-without-end",
        rule="P9: after its time a request is computed",
        file=LOOKUPS,
        old="        if ask.state is State.ASKED and self._now() >= ask.deadline:\n",
        new="        if False:\n",
        checks=_side,
    ),
)

_HOLDING = (
    Mutation(
        name="a-hold-kept-for-a-hit-of-no-tokens",
        rule="P6: a hit that vLLM does not take is released",
        file=SIDE,
        old="            self._learn(tracked)\n            self._end_ask(tracked)\n\n    def build",
        new="            self._learn(tracked)\n\n    def build",
        checks=_side,
    ),
    Mutation(
        name="a-hold-kept-after-an-abort",
        rule="P6: a request that ends lets go of its lookup",
        file=SIDE,
        old="        if not tracked.loading:\n            self._end_ask(tracked)\n",
        new="",
        checks=_side,
    ),
    Mutation(
        name="a-hold-released-under-its-load",
        rule="P6: the lease lasts as long as the load",
        file=SIDE,
        old="        if not tracked.loading:\n            self._end_ask(tracked)\n",
        new="        self._end_ask(tracked)\n",
        checks=_side,
    ),
    Mutation(
        name="a-hold-that-outlives-its-load",
        rule="P6: the lease ends with the load",
        file=SIDE,
        old="                tracked.forget_saved()\n            self._end_ask(tracked)\n",
        new="                tracked.forget_saved()\n",
        checks=_side,
    ),
    Mutation(
        name="a-lapse-that-takes-the-lease-from-a-load",
        rule="a load under way finds out itself what is gone",
        file=LOOKUPS,
        old="        if ask is None or ask.lent:\n",
        new="        if ask is None:\n",
        checks=_side,
    ),
    Mutation(
        name="an-answer-that-crossed-its-release-is-kept",
        rule="P6: what nobody waits for is released",
        file=LOOKUPS,
        old="            if not answer.error:  # it crossed our release: nobody else will let go of it\n",
        new="            if answer.error:\n",
        checks=_side,
    ),
    Mutation(
        name="one-request-asks-for-ever",
        rule="holds that lapse again and again end in computing",
        file=LOOKUPS,
        old="        if ask.asks >= MAX_ASKS:\n",
        new="        if False:\n",
        checks=_side,
    ),
)

_LOADING = (
    Mutation(
        name="a-load-into-the-null-block",
        rule="block 0 is never touched",
        file=LOADS,
        old="                if not block.is_null\n",
        new="                if True\n",
        checks=_side,
    ),
    Mutation(
        name="a-load-over-what-the-engine-has",
        rule="blocks that others read are not written to",
        file=LOADS,
        old="            first = tracked.local // rule.block_tokens\n",
        new="            first = 0\n",
        checks=_side,
    ),
    Mutation(
        name="a-load-by-the-hashes-of-other-blocks",
        rule="P11: a group whose blocks span several hashes is keyed by the last of each",
        file=LOADS,
        old="            hashes = request.block_hashes[first * rule.hash_stride : last * rule.hash_stride]\n",
        new="            hashes = request.block_hashes[first : last * rule.hash_stride]\n",
        checks=_side,
    ),
    Mutation(
        name="a-load-from-the-base-models-blocks",
        rule="P11: an adapter's blocks have scopes of their own",
        file=LOADS,
        old='request.request_id, tracked.adapter or "", tuple(groups)',
        new='request.request_id, "", tuple(groups)',
        checks=_side,
    ),
)

_SAVING = (
    Mutation(
        name="a-block-saved-while-its-step-is-in-flight",
        rule="P1: what a rejected draft token left is never stored",
        file=SAVES,
        old="        tokens = request.num_computed_tokens - request.num_in_flight_tokens\n",
        new="        tokens = request.num_computed_tokens\n",
        checks=_side,
    ),
    Mutation(
        name="a-half-loaded-block-saved",
        rule="P1: what is being loaded is not saved",
        file=SIDE,
        old="        tracked.ran = False\n        if tokens > 0:\n",
        new="        tracked.ran = True\n        if tokens > 0:\n",
        checks=_side,
    ),
    Mutation(
        name="a-preempted-request-counts-as-running",
        rule="what is computed after a reset is saved",
        file=SIDE,
        old="                tracked.ran = tracked.stale = False\n",
        new="                tracked.stale = False\n",
        checks=_side,
    ),
    Mutation(
        name="blocks-of-before-a-reset-saved",
        rule="a reset leaves nothing of the old weights",
        file=SIDE,
        old="        if not tracked.ran or tracked.stale or not self._usable() or not self._adapter(tracked):\n",
        new="        if not tracked.ran or not self._usable() or not self._adapter(tracked):\n",
        checks=_side,
    ),
    Mutation(
        name="a-save-of-the-null-block",
        rule="block 0 is never touched",
        file=SAVES,
        old=(
            "                if found is None or found.is_null:\n"
            "                    continue\n"
            "                block = found\n"
        ),
        new="                block = found or block\n",
        checks=_side,
    ),
    Mutation(
        name="a-save-under-the-hashes-of-other-blocks",
        rule="P11: a group whose blocks span several hashes is keyed by the last of each",
        file=SAVES,
        old="        hashes = tracked.request.block_hashes[(start - ahead) * stride : end * stride]\n",
        new="        hashes = tracked.request.block_hashes[start - ahead : end * stride]\n",
        checks=_side,
    ),
    Mutation(
        name="one-prefix-saved-by-every-request",
        rule="a block is saved by one job at a time",
        file=SAVES,
        old='            if not self._pins.saving((tracked.adapter or "", rule.group, key)):\n',
        new="            if True:\n",
        checks=_side,
    ),
    Mutation(
        name="as-many-blocks-pinned-as-there-are",
        rule="saves pin at most a configured share of the engine's blocks",
        file=PINS,
        old="        self._most = max(1, int(blocks.total * max_ratio))\n",
        new="        self._most = blocks.total\n",
        checks=_side,
    ),
    Mutation(
        name="a-job-over-when-the-first-rank-says-so",
        rule="P2: a block is not given out while a rank still reads it (vLLM#52360)",
        file=PINS,
        old="        if job.report.rank_bits & self._everyone != self._everyone:\n            return None\n",
        new="",
        checks=_side,
    ),
    Mutation(
        name="pins-kept-when-a-save-was-dropped",
        rule="every way out of a job gives its blocks back",
        file=PINS,
        old="        self.unpin(job_id)\n        return job\n",
        new="        if job.report.complete:\n            self.unpin(job_id)\n        return job\n",
        checks=_side,
    ),
    Mutation(
        name="pins-of-orders-that-a-reset-dropped-are-kept",
        rule="every way out of a job gives its blocks back",
        file=SAVES,
        old="len(self._pins.unpin(order.job_id).blocks)",
        new="len(order.groups[0].keys)",
        checks=_side,
    ),
    Mutation(
        name="a-missing-report-never-asked-for",
        rule="a report that got lost does not pin blocks for ever",
        file=PINS,
        old="        late = [job for job in self._jobs.values() if job.deadline <= now]\n",
        new="        late: list[PinnedJob] = []\n",
        checks=_side,
    ),
    Mutation(
        name="an-engine-that-sleeps-on-its-saves",
        rule="has_pending_push_work: the engine goes on stepping while saves are under way",
        file=SIDE,
        old="        return self.save_jobs > 0 or self._fence > 0\n",
        new="        return self._fence > 0\n",
        checks=_side,
    ),
)

_RESETTING = (
    Mutation(
        name="a-reset-that-leaves-queued-saves",
        rule="queued saves are fenced before a reset removes",
        file=SIDE,
        old="            self._saves.drop_queued()\n",
        new="            pass\n",
        checks=_side,
    ),
    Mutation(
        name="a-reset-that-fences-no-worker",
        rule="saves of before a reset store nothing after it",
        file=SIDE,
        old="        self._fence = self._last_job\n",
        new="",
        checks=_side,
    ),
    Mutation(
        name="a-reset-confirmed-while-saves-are-under-way",
        rule="a reset that is not sure says so",
        file=f"{VLLM}/scheduler/resets.py",
        old="self.due, not removed or self._saving()\n",
        new="self.due, not removed\n",
        checks=_side,
    ),
    Mutation(
        name="a-pool-that-is-used-before-its-reset-is-confirmed",
        rule="P1: blocks of the old weights are never loaded",
        file=SIDE,
        old="        return pays and self._usable()\n",
        new="        return pays\n",
        checks=_side,
    ),
    Mutation(
        name="a-hit-of-before-a-reset-is-taken",
        rule="what was found before a reset is asked for again",
        file=SIDE,
        old="                self._lookups.again(tracked.ask)\n",
        new="                pass\n",
        checks=_side,
    ),
)

_REPORTING = (
    Mutation(
        name="a-load-reported-twice",
        rule="P10: each rank reports each load once (vLLM#53049)",
        file=WORKER,
        old="        request = self._loading.pop(done.job_id, None)\n",
        new="        request = self._loading.get(done.job_id)\n",
        checks=_worker,
    ),
    Mutation(
        name="a-load-that-was-refused-is-never-reported",
        rule="P10: every order is answered",
        file=WORKER,
        old=(
            "            if reason:\n"
            "                self._end_load(LoadDone(order.job_id, False, error=reason, reason=reason))\n"
        ),
        new="",
        checks=_worker,
    ),
    Mutation(
        name="a-failed-load-reported-as-received-alone",
        rule="P10: failures go through the failed-receiving set",
        file=WORKER,
        old="            self._transfers.failed.add(request)\n",
        new="",
        checks=_worker,
    ),
    Mutation(
        name="a-rank-without-a-part-of-a-save-is-silent",
        rule="every rank reports every save",
        file=WORKER,
        old="            self._end_save(SaveDone(order.job_id))\n",
        new="            pass\n",
        checks=_worker,
    ),
    Mutation(
        name="a-rank-asked-again-drops-what-it-still-reads",
        rule="P2: a rank reports a save when it has drained",
        file=WORKER,
        old="            if job_id not in self._saving:\n",
        new="            if True:\n",
        checks=_worker,
    ),
    Mutation(
        name="a-port-that-breaks-ends-the-engine",
        rule="P10: whatever breaks, the engine goes on",
        file=WORKER,
        old="        except Exception as error:\n            if self._failures",
        new="        except OSError as error:\n            if self._failures",
        checks=_worker,
    ),
    Mutation(
        name="the-null-block-handed-to-the-pool",
        rule="block 0 is never touched",
        file=f"{VLLM}/worker/jobs.py",
        old=" or not self._tensors.holds(blocks.block_ids):\n",
        new=":\n",
        checks=_worker,
    ),
)

_NAMING = (
    Mutation(
        name="sides-that-disagree-move-blocks",
        rule="P11: both sides of an engine build equal keys (LMCache#1728)",
        file=WORKER,
        old="        if orders.fingerprint and orders.fingerprint != self._identity.fingerprint:\n",
        new="        if False:\n",
        checks=_worker,
    ),
    Mutation(
        name="no-tensor-rank-in-the-scope",
        rule="P11: each rank's part has a scope of its own",
        file="pykvpool/hashing/store_keys.py",
        old='        part = f"tp{shard}-pp',
        new='        part = f"tp0-pp',
        checks=selections("vllm/test_worker.py", "hashing/test_store_keys.py"),
    ),
    Mutation(
        name="no-pipeline-rank-in-the-scope",
        rule="P11: each rank's part has a scope of its own",
        file="pykvpool/hashing/store_keys.py",
        old="-pp{rank.pipeline}-pcp",
        new="-pp0-pcp",
        checks=_identity,
    ),
    Mutation(
        name="no-first-hash-in-the-fingerprint",
        rule="P11: chains that begin differently never meet (LMCache#1095)",
        file=IDENTITY,
        old="        first_hash=first_hash,\n",
        new='        first_hash=b"",\n',
        checks=_identity,
    ),
    Mutation(
        name="no-dtype-in-the-fingerprint",
        rule="P11: the same folder in another dtype is another model (vLLM PR#56971)",
        file=IDENTITY,
        old='        kv_dtype=model_dtype if cache.cache_dtype == "auto" else str(cache.cache_dtype),\n',
        new='        kv_dtype="auto",\n',
        checks=_identity,
    ),
    Mutation(
        name="xxhash-without-a-seed-accepted",
        rule="P11: hashes that no other process has are refused",
        file=IDENTITY,
        old="    if seed is None and not known.cryptographic:\n",
        new="    if False:\n",
        checks=_identity,
    ),
    Mutation(
        name="one-rank-stores-what-all-hold",
        rule="ranks that hold the same bytes store each block once, striped",
        file=IDENTITY,
        old='        return self.count == 1 or int.from_bytes(key[-8:], "big") % self.count == self.index\n',
        new="        return True\n",
        checks=selections("vllm/test_worker.py"),
    ),
)

MUTATIONS = (*_LOOKING_UP, *_HOLDING, *_LOADING, *_SAVING, *_RESETTING, *_REPORTING, *_NAMING)
