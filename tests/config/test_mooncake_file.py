"""A Mooncake Store file is taken as far as it means something here."""

import json
from pathlib import Path

import pytest

from pykvpool.config import Config, load
from pykvpool.errors import ConfigError

USUAL = {
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "10.0.0.1:50051",
    "protocol": "tcp",
    "device_name": "",
    "global_segment_size": "80GB",
    "local_buffer_size": "4GB",
    "mode": "embedded",
    "enable_offload": False,
    "tenant_id": "team-a",
    "local_hostname": "10.0.0.2",
}


def loaded(tmp_path: Path, table: object, **kwargs) -> Config:
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps(table))
    return load(kwargs.get("path"), {"MOONCAKE_CONFIG_PATH": str(path), **kwargs.get("environ", {})}, {})


def test_what_means_something_here_is_taken_and_the_rest_is_named(tmp_path: Path) -> None:
    config = loaded(tmp_path, USUAL)
    assert config.pool.master == ("tcp://10.0.0.1:50051",)
    assert config.node.segment_size == 80 * 1024**3
    assert config.node.advertise == "10.0.0.2"
    assert config.client.namespace == "team-a"
    assert (config.node.fabrics, config.client.fabrics) == (("shm", "tcp"), ("inproc", "shm", "tcp"))
    assert config.sources["pool.master"] == f"{tmp_path / 'mooncake.json'} (MOONCAKE_CONFIG_PATH)"
    assert [warning.split(": ", 1)[1].split("'")[1] for warning in config.warnings] == [
        "metadata_server",
        "local_buffer_size",
    ]


def test_several_masters_stay_several(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"master_server_address": "a:1; [::1]:2"})
    assert config.pool.master == ("tcp://a:1", "tcp://[::1]:2")
    assert config.warnings == ()


def test_a_file_that_asks_for_rdma_gets_it_beside_the_rest_on_the_devices_it_names(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"protocol": "rdma", "device_name": "mlx5_0, mlx5_1"})
    assert config.node.fabrics == ("shm", "rdma", "tcp")
    assert config.client.fabrics == ("inproc", "shm", "rdma", "tcp")
    assert config.rdma.devices == ("mlx5_0", "mlx5_1")
    assert config.warnings == ()


def test_everything_of_ours_wins_over_it(tmp_path: Path) -> None:
    ours = tmp_path / "pool.toml"
    ours.write_text('[node]\nsegment_size = "1GB"\n')
    config = loaded(tmp_path, USUAL, path=ours, environ={"PYKVPOOL_MASTER": "tcp://b:2"})
    assert config.node.segment_size == 1024**3
    assert config.pool.master == ("tcp://b:2",)
    assert config.client.namespace == "team-a"


@pytest.mark.parametrize(
    ("table", "warning"),
    [
        ({"enable_offload": True}, "no SSD tier"),
        ({"global_segment_size": 0, "mode": "standalone-store"}, "run a node beside"),
        ({"some_new_key": 1}, "'some_new_key' is unknown here and ignored"),
    ],
)
def test_what_is_ignored_is_said(tmp_path: Path, table: dict, warning: str) -> None:
    config = loaded(tmp_path, table)
    assert len(config.warnings) == 1
    assert warning in config.warnings[0]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"protocol": "ascend"}, "'protocol': 'ascend' is not allowed: expected one of 'tcp', 'rdma'"),
        ({"protocol": 3}, "'protocol': 3 is not allowed"),
        ({"master_server_address": "etcd://a:1"}, "no etcd or Redis"),
        ({"master_server_address": "a"}, "expected 'host:port'"),
        ({"mode": "strange"}, "'mode': 'strange' is not allowed"),
        ({"global_segment_size": "lots"}, "'global_segment_size': 'lots' is not allowed: expected a size"),
        ({"local_buffer_size": -1}, "'local_buffer_size': -1"),
        ({"enable_offload": 1}, "expected true or false"),
        ({"tenant_id": 7}, "'tenant_id': 7"),
        ([], "holds no JSON object"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_key_and_file(tmp_path: Path, table: object, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, table)
    assert reason in caught.value.message
    assert str(tmp_path / "mooncake.json") in caught.value.message


def test_no_tenant_is_the_default_one(tmp_path: Path) -> None:
    assert loaded(tmp_path, {"tenant_id": None}).client.namespace == "default"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load(None, {"MOONCAKE_CONFIG_PATH": str(tmp_path / "gone.json")}, {})
