"""Options are checked when the engine starts: a slip is refused with what is allowed, never ignored."""

from types import SimpleNamespace

import pytest

from pykvpool.errors import ConfigError
from pykvpool_connector.vllm.settings import Settings, check_options, options, settings_of


def settings(role: str = "kv_both", environ: dict[str, str] | None = None, **extra) -> Settings:
    return settings_of(SimpleNamespace(kv_role=role, kv_connector_extra_config=extra), environ or {})


def test_without_any_option_there_are_defaults():
    found = settings()
    assert found.config.pool.master == ("tcp://127.0.0.1:7000",)
    assert found.namespace == "default"
    assert (found.saves, found.loads) == (True, True)
    assert found.min_load_tokens == 0
    for option in options():
        assert option.kind.parse(list(option.default) if isinstance(option.default, tuple) else option.default) == (
            option.default
        )


def test_options_are_read_by_their_kinds():
    found = settings(master="tcp://a:1,tcp://b:2", embedded_size=0, save_timeout_ms="2s", max_pinned_ratio=0.5)
    assert found.config.pool.master == ("tcp://a:1", "tcp://b:2")
    assert found.save_timeout_ms == 2_000
    assert found.max_pinned_ratio == 0.5
    assert settings(master=["tcp://a:1"]).config.pool.master == ("tcp://a:1",)
    assert settings(embedded_size="2GiB").embedded_size == 2 * 1024**3


def test_an_unknown_option_is_refused_with_the_list_of_what_is_allowed():
    with pytest.raises(ConfigError, match=r"'min_load_token'.*did you mean 'min_load_tokens'") as caught:
        settings(min_load_token=5)
    for option in options():
        assert option.name in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("min_load_tokens", -1),
        ("min_load_tokens", "many"),
        ("max_pinned_ratio", 0),
        ("save_decode_cache", "yes"),
        ("placement", "elsewhere"),
        ("kv_layout", "XYZ"),
        ("master", "host:7000"),
        ("embedded_size", "much"),
        ("save_timeout_ms", 0),
        ("namespace", "a/b"),
        ("cache_prefix", "a/b"),
        ("cache_prefix", "x" * 300),
    ],
)
def test_a_value_that_is_not_allowed_names_its_option(option, value):
    with pytest.raises(ConfigError, match=f"{option!r} in kv_connector_extra_config"):
        settings(**{option: value})


def test_a_wrong_token_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        settings(token=["very secret"])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("role", "saves", "loads"), [("kv_producer", True, False), ("kv_consumer", False, True)])
def test_a_producer_never_loads_and_a_consumer_never_saves(role, saves, loads):
    found = settings(role)
    assert (found.saves, found.loads) == (saves, loads)


def test_an_unknown_role_is_refused():
    with pytest.raises(ConfigError, match="kv_role"):
        settings("kv_reader")


def test_options_win_over_the_configuration_file_and_that_over_nothing(tmp_path):
    file = tmp_path / "pool.toml"
    file.write_text('[pool]\nmaster = ["tcp://file:1"]\ntoken = "t"\n[client]\nnamespace = "team"\n')
    found = settings(config_file=str(file), cache_prefix="blue")
    assert found.config.pool.master == ("tcp://file:1",)
    assert found.config.pool.token == "t"
    assert found.namespace == "team:blue"
    assert settings(config_file=str(file), master="tcp://option:2").config.pool.master == ("tcp://option:2",)
    assert settings(environ={"PYKVPOOL_CONFIG": str(file)}).config.pool.token == "t"


@pytest.mark.parametrize(
    "extra",
    [
        {"embedded_size": "1GiB", "node_socket": "/run/n.engines"},
        {"embedded_size": "1GiB", "placement": "node"},
        {"placement": "embedded", "node_socket": "/run/n.engines"},
        {"node_socket": "n.engines"},
        {"node_socket": "/run" * 40},
    ],
    ids=["own pool, named node", "own pool, placed", "embedded, named node", "not absolute", "too long"],
)
def test_what_says_in_two_ways_where_io_is_done_or_where_nothing_can_be_is_refused(extra):
    with pytest.raises(ConfigError, match=r"node_socket|placement"):
        settings(**extra)


def test_joining_a_pool_and_starting_one_exclude_each_other():
    with pytest.raises(ConfigError, match="embedded_size"):
        settings(master="tcp://a:1", embedded_size="1GiB")


def test_options_alone_can_be_checked_before_there_is_a_role():
    check_options({"min_load_tokens": 16}, {})
    check_options(None, {})
    for wrong in ({"min_load_token": 16}, {"embedded_size": "1GiB", "placement": "node"}, {"drain_s": "soon"}):
        with pytest.raises(ConfigError, match=next(reversed(wrong))):
            check_options(wrong, {})
