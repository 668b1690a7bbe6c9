"""Layers, sources and refusals of the configuration."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from pykvpool.config import Config, load
from pykvpool.config.schema import KEYS
from pykvpool.core.config import CoreConfig
from pykvpool.core.eviction import POLICIES
from pykvpool.errors import ConfigError


def written(tmp_path: Path, text: str, name: str = "pool.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def refusal(path: Path | None = None, environ: dict | None = None, flags: dict | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {}, flags or {})
    return caught.value.message


def test_without_anything_every_value_is_its_default() -> None:
    config = load(None, {}, {})
    assert config.pool.master == ("tcp://127.0.0.1:7000",)
    assert config.node.segment_size == 1024**3
    assert set(config.sources.values()) == {"default"}
    assert config.warnings == ()


def test_later_layers_win_key_by_key_and_each_value_knows_its_source(tmp_path: Path) -> None:
    path = written(tmp_path, '[node]\nname = "a"\nsegment_size = "1GB"\nadvertise = "h"\n[log]\nlevel = "debug"\n')
    config = load(
        path,
        {"PYKVPOOL_NODE_NAME": "b", "PYKVPOOL_NODE_SEGMENT_SIZE": "2GB", "PATH": "/bin"},
        {"node.name": "c", "node.shm_dir": None},
    )
    assert (config.node.name, config.node.segment_size, config.node.advertise) == ("c", 2 * 1024**3, "h")
    assert config.sources["node.name"] == "flag --name"
    assert config.sources["node.segment_size"] == "PYKVPOOL_NODE_SEGMENT_SIZE"
    assert config.sources["node.advertise"] == str(path)
    assert config.sources["node.shm_dir"] == "default"
    assert config.log.level == "debug"


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    table = {"pool": {"master": ["tcp://a:1", "tcp://[::1]:2"]}, "client": {"timeout_s": 2.5, "replicas": 2}}
    toml = '[pool]\nmaster = ["tcp://a:1", "tcp://[::1]:2"]\n[client]\ntimeout_s = 2.5\nreplicas = 2\n'
    from_json = load(written(tmp_path, json.dumps(table), "pool.json"), {}, {})
    from_toml = load(written(tmp_path, toml), {}, {})
    assert (from_json.pool, from_json.client) == (from_toml.pool, from_toml.client)
    assert from_json.client.timeout_s == 2.5


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    path = written(tmp_path, '[node]\nname = "a"\n')
    other = written(tmp_path, '[node]\nname = "b"\n', "other.toml")
    assert load(None, {"PYKVPOOL_CONFIG": str(path)}, {}).node.name == "a"
    assert load(other, {"PYKVPOOL_CONFIG": str(path)}, {}).node.name == "b"


def test_the_masters_keys_are_those_of_its_core() -> None:
    config = load(None, {}, {})
    assert {each.name: each.default for each in fields(CoreConfig)} == {
        each.name: getattr(config.master, each.name) for each in fields(CoreConfig)
    }


def test_lists_and_shared_keys_in_variables() -> None:
    config = load(
        None,
        {"PYKVPOOL_MASTER": "tcp://a:1, tcp://b:2", "PYKVPOOL_CLIENT_FABRICS": "tcp", "PYKVPOOL_CLUSTER": "blue"},
        {},
    )
    assert config.pool.master == ("tcp://a:1", "tcp://b:2")
    assert config.client.fabrics == ("tcp",)
    assert config.pool.cluster == "blue"


# -- unknown names -----------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_by_name_with_the_nearest_known_one(tmp_path: Path) -> None:
    path = written(tmp_path, '[node]\nsegment_sise = "1GB"\n')
    assert refusal(path) == f"unknown key 'segment_sise' in [node] of {path}: did you mean 'segment_size'?"


def test_an_unknown_key_like_no_other_is_refused_without_a_guess(tmp_path: Path) -> None:
    path = written(tmp_path, "[node]\nqwertz = 1\n")
    assert refusal(path) == f"unknown key 'qwertz' in [node] of {path}"


def test_unknown_sections_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "[nodes]\n")
    assert refusal(path) == f"unknown section [nodes] in {path}: did you mean [node]?"
    assert "is no table" in refusal(written(tmp_path, "node = 3\n"))


def test_a_slip_in_a_variable_is_refused() -> None:
    assert (
        refusal(environ={"PYKVPOOL_NODE_SEGMENT_SISE": "1GB"})
        == "unknown variable PYKVPOOL_NODE_SEGMENT_SISE: did you mean PYKVPOOL_NODE_SEGMENT_SIZE?"
    )
    assert refusal(environ={"PYKVPOOL_TOKE": "x"}) == "unknown variable PYKVPOOL_TOKE: did you mean PYKVPOOL_TOKEN?"


def test_variables_of_others_do_not_stop_anything() -> None:
    """Kubernetes names the services of a namespace in the environment of every pod."""
    environ = {
        "PYKVPOOL_MASTER_SERVICE_HOST": "10.0.0.1",
        "PYKVPOOL_MASTER_SERVICE_PORT_CONTROL": "7000",
        "PYKVPOOL_MASTER_PORT": "tcp://10.0.0.1:7000",
        "PYKVPOOL_MASTER_PORT_7000_TCP_ADDR": "10.0.0.1",
        "PYKVPOOL_XYZZY": "1",
    }
    config = load(None, environ, {})
    assert config.warnings == ("the variable PYKVPOOL_XYZZY is unknown and ignored",)
    assert set(config.sources.values()) == {"default"}


def test_an_unknown_flag_is_refused() -> None:
    assert (
        refusal(flags={"node.segment_sizes": 1})
        == "unknown key 'node.segment_sizes': did you mean 'node.segment_size'?"
    )


# -- bad values --------------------------------------------------------------------------------------------------


def test_a_bad_value_names_key_source_and_what_is_allowed(tmp_path: Path) -> None:
    path = written(tmp_path, '[node]\nsegment_size = "80XB"\n')
    message = refusal(path)
    assert message.startswith(
        f"bad value of 'segment_size' in [node] of {path}: '80XB' is not allowed: expected a size"
    )
    assert refusal(environ={"PYKVPOOL_NODE_SEGMENT_SIZE": "-1"}).startswith(
        "bad value of the variable PYKVPOOL_NODE_SEGMENT_SIZE: '-1' is not allowed"
    )
    assert refusal(flags={"master.http_listen": "99999"}).startswith("bad value of the flag --http: '99999' is not")
    assert refusal(flags={"client.replicas": 9}) == (
        "bad value of the flag --replicas: 9 is not allowed: expected a whole number from 1 to 8"
    )


@pytest.mark.parametrize(
    "text",
    [
        '[client]\nreplicas = "2"',
        "[client]\nreplicas = true",
        "[client]\nreplicas = 1.5",
        "[client]\nname = 3",
        '[pool]\nmaster = "tcp://a:1"',
        "[pool]\nmaster = []",
        '[pool]\nmaster = ["a 1"]',
        "[pool]\nmaster = [7]",
        '[client]\nfabrics = ["carrier pigeon"]',
        "[client]\ntimeout_s = 0",
        "[client]\ntimeout_s = nan",
        "[client]\ntimeout_s = inf",
        "[master]\nlease_ms = 1.5",
        '[master]\nlease_ms = "10 parsecs"',
        "[master]\nmax_leased_ratio_per_session = 1.5",
        '[node]\nname = "two\\nlines"',
        '[log]\nlevel = "loud"',
    ],
)
def test_wrong_types_and_values_are_refused(tmp_path: Path, text: str) -> None:
    assert "is not allowed: expected" in refusal(written(tmp_path, text))


def test_values_that_contradict_each_other_are_refused_with_both_sources() -> None:
    message = refusal(flags={"client.min_replicas": 3}, environ={"PYKVPOOL_CLIENT_REPLICAS": "2"})
    assert message == (
        "client.min_replicas = 3 (from flag --min-replicas) is more than client.replicas = 2 "
        "(from PYKVPOOL_CLIENT_REPLICAS)"
    )
    assert "master.lease_ms = 120000" in refusal(flags={"master.lease_ms": "2m"})
    assert "no power of two" in refusal(flags={"master.alignment_bytes": 48})


# -- files -------------------------------------------------------------------------------------------------------


def test_a_missing_file_a_directory_and_a_strange_name_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml") == f"there is no file {tmp_path / 'none.toml'}"
    (tmp_path / "dir.toml").mkdir()
    assert "is a directory" in refusal(tmp_path / "dir.toml")
    assert "neither .toml nor .json" in refusal(written(tmp_path, "", "pool.yaml"))
    assert "cannot be read" in refusal(tmp_path / ("x" * 300 + ".toml"))


def test_broken_files_are_refused_with_the_line(tmp_path: Path) -> None:
    assert "at line 2" in refusal(written(tmp_path, "[node]\nname = \n"))
    assert "line 2, column 1" in refusal(written(tmp_path, "{\n", "pool.json"))
    assert "holds no JSON object but a list" in refusal(written(tmp_path, "[]", "pool.json"))
    assert "'name' stands there twice" in refusal(
        written(tmp_path, '{"node": {"name": "a", "name": "b"}}', "pool.json")
    )
    assert "not valid JSON" in refusal(written(tmp_path, '{"node": }', "pool.json"))
    (tmp_path / "bytes.toml").write_bytes(b"# \xff")
    assert "byte 2 is wrong" in refusal(tmp_path / "bytes.toml")
    assert "over 1,048,576 bytes" in refusal(written(tmp_path, "#" * (1 << 20) + "\n"))
    assert "recursion" in refusal(written(tmp_path, '{"node":' + "[" * 200_000, "deep.json"))


# -- secrets -----------------------------------------------------------------------------------------------------


def test_the_token_comes_from_its_file(tmp_path: Path) -> None:
    token_file = written(tmp_path, "s3cret\n", "token")
    config = load(None, {}, {"pool.token_file": str(token_file)})
    assert config.pool.token == "s3cret"
    assert config.sources["pool.token"] == f"token file {token_file}"
    assert "empty first line" in refusal(flags={"pool.token_file": str(written(tmp_path, "\n", "empty"))})
    assert "only one can be meant" in refusal(
        flags={"pool.token_file": str(token_file)}, environ={"PYKVPOOL_TOKEN": "x"}
    )


def test_a_token_is_shown_nowhere() -> None:
    config = load(None, {"PYKVPOOL_TOKEN": "s3cret"}, {})
    assert "s3cret" not in str(config.show())
    assert '"***"' in {line.text for line in config.show()}
    assert "s3cret" not in refusal(environ={"PYKVPOOL_TOKEN": "s3cret\n"})
    assert "s3cret" not in refusal(flags={"pool.token": ["s3cret"]})


def test_show_lists_every_key_as_it_would_stand_in_a_file(tmp_path: Path) -> None:
    config = load(None, {"PYKVPOOL_NODE_SEGMENT_SIZE": "1.5GB"}, {})
    shown = config.show()
    assert [line.path for line in shown] == list(KEYS)
    tables: dict[str, list[str]] = {}
    for line in shown:
        section, name = line.path.split(".")
        tables.setdefault(section, []).append(f"{name} = {line.text}")
    text = "\n".join(f"[{section}]\n" + "\n".join(lines) for section, lines in tables.items())
    again: Config = load(written(tmp_path, text), {}, {})
    assert (again.pool, again.master, again.node) == (config.pool, config.master, config.node)


def test_the_caller_keeps_its_environment_and_flags() -> None:
    environ, flags = {"PYKVPOOL_NODE_NAME": "a"}, {"node.name": "b"}
    load(None, environ, flags)
    assert (environ, flags) == ({"PYKVPOOL_NODE_NAME": "a"}, {"node.name": "b"})


def test_the_policies_to_choose_from_are_those_there_are() -> None:
    assert set(KEYS["master.policy"].kind.words) == set(POLICIES)
