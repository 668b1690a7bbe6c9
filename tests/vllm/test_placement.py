"""Every process of every engine has a name of its own in the pool."""

from types import SimpleNamespace

import pytest

from pykvpool.errors import NotSupported
from pykvpool_connector.vllm.placement import access_of, session_name, worker_port
from pykvpool_connector.vllm.settings import settings_of


def engine(engine_id: str = "e", data_parallel: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(engine_id=engine_id),
        parallel_config=SimpleNamespace(data_parallel_index=data_parallel),
    )


def test_session_names_never_meet():
    """Engine, data-parallel rank, role, rank and child of MultiConnector; and the same again in another process."""
    names = [
        session_name(engine(engine_id, data_parallel), role)
        for engine_id in ("a", "b", "a" * 500)
        for data_parallel in (0, 1)
        for role in ("scheduler", "pp0-tp0", "pp0-tp1")
        for _child in range(2)
    ]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 64


def test_how_the_pool_is_reached_comes_from_the_settings():
    extra = {"master": ["tcp://a:1", "tcp://b:2"], "cluster": "c", "token": "t", "fabrics": ["tcp"], "replicas": 2}
    found = access_of(settings_of(SimpleNamespace(kv_role="kv_both", kv_connector_extra_config=extra), {}), "me")
    assert (found.masters, found.name, found.cluster, found.token) == (("tcp://a:1", "tcp://b:2"), "me", "c", "t")
    assert (found.fabrics, found.replicas) == (("tcp",), 2)
    none = access_of(settings_of(SimpleNamespace(kv_role="kv_both", kv_connector_extra_config={}), {}), "me")
    assert none.token is None


def test_rdma_devices_that_the_file_names_are_used_where_the_engine_does_its_own_io(tmp_path):
    file = tmp_path / "pool.toml"
    file.write_text('[rdma]\ndevices = ["mlx5_3"]\nqueue_pairs = 2\n')
    extra = {"config_file": str(file), "fabrics": ["rdma", "tcp"]}
    found = access_of(settings_of(SimpleNamespace(kv_role="kv_both", kv_connector_extra_config=extra), {}), "me")
    assert (found.rdma.devices, found.rdma.queue_pairs) == (("mlx5_3",), 2)


@pytest.mark.parametrize("extra", [{"embedded_size": "1GiB"}, {"placement": "node"}, {"node_socket": "/run/n.engines"}])
def test_gpu_memory_is_moved_by_its_own_process_or_not_at_all(extra):
    config = engine()
    config.parallel_config = SimpleNamespace(data_parallel_index=0, rank=0, tensor_parallel_size=1)
    settings = settings_of(SimpleNamespace(kv_role="kv_both", kv_connector_extra_config=extra), {})
    with pytest.raises(NotSupported, match=r"GPU memory|host memory"):
        worker_port(settings, config, "cuda")
