"""A block's runs are exactly its bytes, in one order for every layout that shares objects."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import InternalError, NotSupported
from pykvpool_connector.vllm.identity import Identity, identity_of
from pykvpool_connector.vllm.worker.tensors import CacheTensors, read_tensors
from tests.vllm.fakes import (
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    cache_config,
    group,
    vllm_config,
)
from tests.vllm.tensors import Memory, View, block_bytes, caches

LAYERS = ("layer.0", "layer.1", "layer.2")
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


def read(tensors: dict, *groups, layout: str = "LBHNC", blocks: int = 8, **more) -> CacheTensors:
    config = cache_config(*groups, kv_cache_layout=layout, num_blocks=blocks)
    return read_tensors(config, tensors, engine(config, **more))


def engine(config, **more) -> Identity:
    return identity_of(vllm_config(**more), config, model_id="tiny", environ={})


def expected(tensors: dict[str, View], block: int, order: str, pieces: int = 1) -> bytes:
    """The object, element by element: layer by layer, heads and tokens in `order`."""
    found = []
    for view in tensors.values():
        _, heads, tokens, content = view.shape
        cells = [(h, p, n) for h in range(heads) for p in range(pieces) for n in range(tokens)]
        if order == "NHC":
            cells.sort(key=lambda cell: (cell[1], cell[2], cell[0]))
        found += [view.element(block * pieces + p, h, n, c) for h, p, n in cells for c in range(content)]
    return b"".join(found)


@given(
    layout=st.sampled_from(LAYOUTS),
    layers=st.integers(1, 3),
    blocks=st.integers(2, 5),
    heads=st.integers(1, 3),
    per_piece=st.integers(1, 3),
    pieces=st.integers(1, 3),
    padding=st.integers(0, 2),
)
def test_the_runs_of_a_block_are_its_bytes_in_every_layout(layout, layers, blocks, heads, per_piece, pieces, padding):
    tokens = per_piece * pieces
    if not layout.startswith("LB"):  # pages are padded, and blocks cut into pieces, only where layers come first
        pieces, padding = 1, 0
    if pieces > 1:
        padding = 0
    names = LAYERS[:layers]
    tensors = caches(
        layout, layers=names, blocks=blocks, heads=heads, tokens=tokens, content=3, pieces=pieces, padding=padding
    )
    spec = FullAttentionSpec(block_size=tokens, num_kv_heads=heads, head_size=2, head_size_v=1)
    found = read(tensors, group(spec, *names), layout=layout, blocks=blocks)
    order = "NHC" if "NHC" in layout else "HNC"
    for block in range(blocks):
        assert block_bytes(found.runs[0], block) == expected(tensors, block, order, pieces)


def test_a_block_is_one_run_where_blocks_come_first_and_one_for_each_layer_where_layers_do():
    size = {"layers": LAYERS, "blocks": 8, "heads": 2, "tokens": 16, "content": 64}
    for layout, runs in (("BLHNC", 1), ("BLNHC", 1), ("LBHNC", 3), ("LBNHC", 3), ("LHBNC", 6), ("BHLNC", 6)):
        found = read(caches(layout, **size), group(FullAttentionSpec(), *LAYERS), layout=layout)
        assert len(found.runs[0]) == runs
        assert len(found.storages) == 1


def test_objects_of_layouts_that_share_a_fingerprint_have_the_same_bytes():
    """The same numbers in another layout of blocks and layers give the same object."""
    size = {"layers": LAYERS, "blocks": 8, "heads": 2, "tokens": 16, "content": 64}
    first = caches("LBHNC", **size)
    second = caches("BHLNC", **size)
    for name, view in first.items():
        for at in [(b, h, n, c) for b in range(8) for h in range(2) for n in range(16) for c in range(64)]:
            other = second[name]
            place = other.offset + other.unit * sum(i * s for i, s in zip(at, other.strides, strict=True))
            other.memory.buffer[place : place + 4] = view.element(*at)
    one = read(first, group(FullAttentionSpec(), *LAYERS))
    two = read(second, group(FullAttentionSpec(), *LAYERS), layout="BHLNC")
    for block in range(8):
        assert block_bytes(one.runs[0], block) == block_bytes(two.runs[0], block)


def test_mla_has_no_axis_of_heads():
    memory = Memory(8 * 16 * 96 * 4)
    tensors = {"layer.0": View(memory, 0, (8, 16, 96), (16 * 96, 96, 1), 4)}
    found = read(tensors, group(MLAAttentionSpec(), "layer.0"))
    assert [run.length for run in found.runs[0]] == [16 * 96 * 4]


@pytest.mark.parametrize("together", [False, True])
def test_keys_and_values_that_lie_apart_are_one_object(together):
    """(2, blocks, tokens, heads, head) and (blocks, 2, tokens, heads, head): keys first, then values."""
    block = 16 * 2 * 32
    memory = Memory(8 * 2 * block * 4)
    shape, strides = (8, 16, 2, 32), (block, 64, 32, 1)
    if together:
        view = View(memory, 0, (8, 2, *shape[1:]), (2 * block, block, *strides[1:]), 4)
    else:
        view = View(memory, 0, (2, *shape), (8 * block, *strides), 4)
    found = read({"layer.0": view}, group(FullAttentionSpec(), "layer.0"), layout="LBNHC")
    assert len(found.runs[0]) == (1 if together else 2)
    for number in range(8):
        keys = (number * 2 * block if together else number * block) * 4
        values = keys + (block if together else 8 * block) * 4
        raw = memory.buffer.raw
        assert block_bytes(found.runs[0], number) == raw[keys : keys + block * 4] + raw[values : values + block * 4]


def test_groups_that_lie_over_each_other_in_one_storage_are_registered_once():
    tensors = caches("LBHNC", layers=LAYERS[:2], blocks=8, heads=2, tokens=16, content=64)
    tensors["window.0"], tensors["window.1"] = tensors["layer.0"], tensors["layer.1"]
    found = read(tensors, group(FullAttentionSpec(), *LAYERS[:2]), group(SlidingWindowSpec(), "window.0", "window.1"))
    assert found.runs[0] == found.runs[1]
    assert len(found.storages) == 1


def test_layers_of_one_group_may_differ():
    wide = caches("LBHNC", layers=["wide"], blocks=8, heads=2, tokens=16, content=64)
    narrow = caches("LBHNC", layers=["narrow"], blocks=8, heads=2, tokens=16, content=32)
    specs = {"wide": FullAttentionSpec(), "narrow": FullAttentionSpec(head_size=16, head_size_v=16)}
    found = read(wide | narrow, group(UniformTypeKVCacheSpecs(specs), "wide", "narrow"))
    assert [run.length for run in found.runs[0]] == [2 * 16 * 64 * 4, 2 * 16 * 32 * 4]
    assert len(found.storages) == 2


def test_a_pipeline_rank_without_a_layer_of_a_group_adds_a_byte():
    """Every rank's part has to be there for a hit; an object of no bytes does not exist."""
    tensors = caches("LBHNC", layers=LAYERS, blocks=8, heads=2, tokens=16, content=64)
    empty = SimpleNamespace(layer_names=[], kv_cache_spec=SlidingWindowSpec(), enable_kv_transfer=True)
    found = read(tensors, group(FullAttentionSpec(), *LAYERS), empty, pipeline_parallel_size=2)
    [run] = found.runs[1]
    assert (run.length, run.stride) == (1, 0)
    assert block_bytes(found.runs[1], 7) == b"\0"


def test_the_null_block_and_blocks_beyond_the_cache_are_not_held():
    tensors = caches("LBHNC", layers=LAYERS, blocks=8, heads=2, tokens=16, content=64)
    found = read(tensors, group(FullAttentionSpec(), *LAYERS))
    assert found.holds((1, 7))
    assert not found.holds((0,))
    assert not found.holds((1, 8))
    assert not found.holds((-1,))


def test_tensors_that_are_not_what_the_configuration_says_are_refused_by_layer():
    """Fused layouts and partial chunks (LMCache#4463, #2206): under that name the bytes would pass for others."""
    tensors = caches("LBHNC", layers=LAYERS, blocks=8, heads=2, tokens=16, content=64)
    with pytest.raises(NotSupported, match=r"layer\.0.*bytes"):
        read(tensors, group(FullAttentionSpec(head_size=16), *LAYERS))
    with pytest.raises(NotSupported, match=r"layer\.0.*bfloat16"):
        read(tensors, group(FullAttentionSpec(dtype="torch.bfloat16"), *LAYERS))
    with pytest.raises(NotSupported, match=r"layer\.0.*8 blocks, not 7"):
        read(tensors, group(FullAttentionSpec(), *LAYERS), blocks=7)
    with pytest.raises(NotSupported, match=r"layer\.9"):
        read(tensors, group(FullAttentionSpec(), *LAYERS, "layer.9"))
    with pytest.raises(NotSupported, match=r"layer\.0.*list"):
        read(tensors | {"layer.0": [tensors["layer.0"]]}, group(FullAttentionSpec(), *LAYERS))
    with pytest.raises(NotSupported, match="form"):
        odd = replace(tensors["layer.0"], shape=(8, 1), strides=(1, 1))
        read({"layer.0": odd}, group(FullAttentionSpec(), "layer.0"))
    with pytest.raises(NotSupported, match="cpu, cuda"):
        other = replace(tensors["layer.1"], device=SimpleNamespace(type="cuda"))
        read(tensors | {"layer.1": other}, group(FullAttentionSpec(), *LAYERS))


def test_memory_of_cuda_devices_is_told_apart_and_of_others_refused():
    tensors = caches("LBHNC", layers=LAYERS, blocks=8, heads=2, tokens=16, content=64)
    assert read(tensors, group(FullAttentionSpec(), *LAYERS)).device == "cpu"
    for kind in ("cuda", "xpu"):
        there = {name: replace(view, device=SimpleNamespace(type=kind)) for name, view in tensors.items()}
        if kind == "cuda":
            assert read(there, group(FullAttentionSpec(), *LAYERS)).device == "cuda"
            continue
        with pytest.raises(NotSupported, match="xpu"):
            read(there, group(FullAttentionSpec(), *LAYERS))


def test_a_view_that_reaches_beyond_its_storage_is_a_bug_that_is_seen():
    tensors = caches("LBHNC", layers=LAYERS[:1], blocks=8, heads=2, tokens=16, content=64)
    beyond = replace(tensors["layer.0"], offset=4)
    with pytest.raises(InternalError, match="beyond"):
        read({"layer.0": beyond}, group(FullAttentionSpec(), "layer.0"))


def test_a_layout_in_which_a_block_is_dust_is_refused():
    tensors = caches("LHBNC", layers=LAYERS[:1], blocks=2, heads=70_000, tokens=1, content=1, unit=1)
    spec = FullAttentionSpec(block_size=1, num_kv_heads=70_000, head_size=1, head_size_v=0)

    class Bytes(FullAttentionSpec):
        unpadded_page_size_bytes = 70_000

    Bytes.__name__ = "FullAttentionSpec"
    with pytest.raises(NotSupported, match="kv_layout"):
        read(tensors, group(Bytes(**vars(spec)), "layer.0"), layout="LHBNC", blocks=2)
