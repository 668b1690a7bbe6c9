"""All mutations, by what they break; one file of `rows` for each part of the pool."""

from __future__ import annotations

from tests.mutations.mutation import Mutation
from tests.mutations.rows import client, fabrics, gpu, master, objects, space

MUTATIONS: tuple[Mutation, ...] = (
    *space.MUTATIONS,
    *objects.MUTATIONS,
    *master.MUTATIONS,
    *client.MUTATIONS,
    *fabrics.MUTATIONS,
    *gpu.MUTATIONS,
)
