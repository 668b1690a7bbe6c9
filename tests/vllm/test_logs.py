"""What the pool says is read where vLLM's log is read."""

import logging

import pytest

from pykvpool_connector.vllm.logs import OURS, join_log


@pytest.fixture
def engine_log():
    """A logger set up as vLLM sets up its own; ours as no program has touched them, and afterwards as they were."""
    before = {name: (log.handlers, log.level, log.propagate) for name in OURS if (log := logging.getLogger(name))}
    for name in OURS:
        ours = logging.getLogger(name)
        ours.handlers, ours.propagate = [], True
        ours.setLevel(logging.NOTSET)
    theirs = logging.getLogger("test-engine")
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    theirs.handlers, theirs.propagate = [Keep()], False
    theirs.setLevel(logging.INFO)
    yield records
    theirs.handlers = []
    for name, (handlers, level, propagate) in before.items():
        ours = logging.getLogger(name)
        ours.handlers, ours.propagate = handlers, propagate
        ours.setLevel(level)


def test_our_records_go_where_the_engines_go(engine_log):
    join_log("test-engine")
    join_log("test-engine")
    logging.getLogger("pykvpool_connector.vllm.placement").info("placed")
    logging.getLogger("pykvpool.host").debug("too much")
    assert engine_log == ["placed"]


def test_a_program_that_set_up_our_log_keeps_it(engine_log):
    ours = logging.getLogger("pykvpool")
    ours.handlers = [logging.NullHandler()]
    join_log("test-engine")
    logging.getLogger("pykvpool.host").error("kept apart")
    assert engine_log == []
    ours.handlers = []
