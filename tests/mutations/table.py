"""All mutations, by what they break; one file of `rows` for each part of the pool."""

from __future__ import annotations

from dataclasses import replace

from tests.mutations.mutation import Mutation
from tests.mutations.rows import client, fabrics, gpu, host, master, objects, rdma, regressions, space, vllm
from tests.mutations.simulated import SIMULATED

MUTATIONS: tuple[Mutation, ...] = (
    *(
        replace(each, simulation=SIMULATED.get(each.name))
        for each in (
            *space.MUTATIONS,
            *objects.MUTATIONS,
            *master.MUTATIONS,
            *client.MUTATIONS,
            *fabrics.MUTATIONS,
            *rdma.MUTATIONS,
            *gpu.MUTATIONS,
            *host.MUTATIONS,
            *vllm.MUTATIONS,
        )
    ),
    *regressions.MUTATIONS,
)
