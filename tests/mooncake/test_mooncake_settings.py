"""What setup is told: sizes, protocols, masters; and the configurations of vLLM, SGLang and LMCache as they stand."""

from __future__ import annotations

import json

import pytest

from pykvpool.config import load
from pykvpool.errors import InvalidArgument, NotSupported
from pykvpool_connector.mooncake import MooncakeDistributedStore, settings
from pykvpool_connector.mooncake.mooncake_config import MooncakeConfig

MIB = 1 << 20
BASE = {"local_hostname": "h", "metadata_server": "", "master_server_addr": "m:1"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("16MB", 16 * MIB), ("16 mb", 16 * MIB), ("1GiB", 1 << 30), ("4096", 4096), (0, 0), ("1.5MB", 3 * MIB // 2)],
)
def test_sizes_are_binary_however_they_are_spelt(text, size):
    assert settings.from_dict({**BASE, "global_segment_size": text}).segment_bytes == size


@pytest.mark.parametrize("size", ["lots", "-1MB", -1, ""])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InvalidArgument):
        settings.from_dict({**BASE, "global_segment_size": size})


@pytest.mark.parametrize("protocol", ["cxl", "nvmeof", "ascend", "efa"])
def test_hardware_that_the_pool_does_not_drive_is_not_supported(protocol):
    with pytest.raises(NotSupported):
        settings.from_dict({**BASE, "protocol": protocol})
    assert MooncakeDistributedStore().setup({**BASE, "protocol": protocol}) == NotSupported.code


@pytest.mark.parametrize("protocol", ["tcp", "rdma", "RDMA"])
def test_tcp_and_rdma_mean_whatever_reaches(protocol):
    assert settings.from_dict({**BASE, "protocol": protocol}).master == ("tcp://m:1",)


def test_several_masters_and_our_own_addresses_are_taken():
    found = settings.from_dict({**BASE, "master_server_addr": "a:1;[::1]:2;unix:///run/m"})
    assert found.master == ("tcp://a:1", "tcp://[::1]:2", "unix:///run/m")


@pytest.mark.parametrize("address", ["etcd://a:1", "redis://a:1"])
def test_a_master_behind_etcd_is_not_supported(address):
    with pytest.raises(NotSupported):
        settings.from_dict({**BASE, "master_server_addr": address})


@pytest.mark.parametrize("address", ["", "host", "host:port", "host:99999"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InvalidArgument):
        settings.from_dict({**BASE, "master_server_addr": address})


def test_a_host_may_have_a_port_and_may_be_ipv6():
    named = settings.from_dict({**BASE, "local_hostname": "node-1:1234"})
    assert (named.host, named.port) == ("node-1", 1234)
    plain = settings.from_dict({**BASE, "local_hostname": "fe80::1"})
    assert (plain.host, plain.port) == ("fe80::1", None)


def test_token_cluster_and_deadline_come_from_our_own_variables(monkeypatch):
    monkeypatch.setenv("PYKVPOOL_TOKEN", "secret")
    monkeypatch.setenv("PYKVPOOL_CLIENT_TIMEOUT_S", "7")
    own = settings.from_dict(BASE).own
    assert (own.pool.token, own.client.timeout_s) == ("secret", 7.0)


#: As in vLLM's documentation: what its workers read from MOONCAKE_CONFIG_PATH.
VLLM = {
    "mode": "embedded",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "MASTER",
    "protocol": "rdma",
    "device_name": "",
    "global_segment_size": "64MB",
    "local_buffer_size": "16MB",
    "enable_offload": False,
    "tenant_id": "vllm-tenant",
}


def write(tmp_path, table, master):
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({key: master if value == "MASTER" else value for key, value in table.items()}))
    return path


def vllm_size(text: str) -> int:
    """vLLM reads the sizes itself and hands numbers on."""
    return int(text.removesuffix("MB")) * MIB


def test_the_configuration_of_vllms_back_end_works_as_it_stands(tmp_path, master, monkeypatch):
    """Its file, and the calls its worker makes with it: seven positional arguments and the tenant."""
    table = json.loads(write(tmp_path, VLLM, master).read_text())
    store = MooncakeDistributedStore()
    code = store.setup(
        "127.0.0.1",
        table["metadata_server"],
        vllm_size(table["global_segment_size"]),
        vllm_size(table["local_buffer_size"]),
        table["protocol"],
        table["device_name"],
        table["master_server_address"],
        tenant_id=table["tenant_id"],
    )
    assert code == 0, store.last_error()
    assert store.put("k", b"x") == 0
    assert store.batch_is_exist(["k", "l"]) == [1, 0]
    assert store.remove_all(force=True) == 1
    assert store.close() == 0


def test_the_same_file_configures_nodes_and_clients_of_ours(tmp_path, master):
    path = write(tmp_path, VLLM, master)
    config = load(None, {"MOONCAKE_CONFIG_PATH": str(path)}, {})
    assert config.pool.master == (f"tcp://{master}",)
    assert (config.node.segment_size, config.client.namespace) == (64 * MIB, "vllm-tenant")


#: What SGLang's HiCache back end reads from the environment.
SGLANG = {
    "MOONCAKE_LOCAL_HOSTNAME": "localhost",
    "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
    "MOONCAKE_GLOBAL_SEGMENT_SIZE": "64MB",
    "MOONCAKE_PROTOCOL": "tcp",
    "MOONCAKE_DEVICE": "",
    "MOONCAKE_MASTER": "MASTER",
}


def test_the_configuration_of_sglangs_back_end_works_as_it_stands(master, monkeypatch):
    """Its variables, and the calls it makes with them: eight positional arguments, a warm-up, zero-copy batches."""
    for name, value in SGLANG.items():
        monkeypatch.setenv(name, master if value == "MASTER" else value)
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    config = MooncakeConfig.load_from_env()
    store = MooncakeDistributedStore()
    code = store.setup(
        config.local_hostname,
        config.metadata_server,
        config.global_segment_size,
        16 * MIB,
        config.protocol,
        config.device_name,
        config.master_server_address,
        None,
        ssd_offload_path="",
    )
    assert code == 0, store.last_error()
    warm = bytes(4096)
    assert store.put("warmup", warm) == 0
    assert store.is_exist("warmup") == 1
    assert store.get("warmup") == warm
    store.close()


def test_a_program_with_a_json_file_reads_it_by_mooncakes_own_class(tmp_path, master, monkeypatch):
    path = write(tmp_path, {**VLLM, "local_hostname": "localhost"}, master)
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    config = MooncakeConfig.load_from_env()
    assert (config.global_segment_size, config.protocol, config.tenant_id) == (64 * MIB, "rdma", "vllm-tenant")


def test_what_a_file_lacks_is_named(tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="master_server_address"):
        MooncakeConfig.from_file(str(path))
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    monkeypatch.delenv("MOONCAKE_MASTER", raising=False)
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()


def test_lmcaches_numbers_and_extra_keys_are_fine(master):
    """It passes numbers, and prefers the node that its own store names."""
    from pykvpool_connector.mooncake import ReplicateConfig

    store = MooncakeDistributedStore()
    assert store.setup("localhost", "http://localhost:8080/metadata", 64 * MIB, 16 * MIB, "tcp", "", master) == 0
    config = ReplicateConfig()
    config.replica_num = 1
    config.preferred_segment = store.get_hostname()
    assert store.put_parts("chunk", bytes(28), bytearray(4096), config=config) == 0
    assert store.batch_get_buffer(["chunk"])[0].size() == 4124
    store.close()
