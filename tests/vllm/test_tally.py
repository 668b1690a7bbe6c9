"""Counts add up over ranks and steps, travel as plain data, and never grow without bound."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pykvpool_connector.vllm.tally import MAX_SAMPLES, METRICS, Tally

COUNTERS = sorted(name for name, metric in METRICS.items() if not metric.seconds)
SECONDS = sorted(name for name, metric in METRICS.items() if metric.seconds)
counts = st.lists(st.tuples(st.sampled_from(COUNTERS), st.integers(0, 5), st.sampled_from(["", "a", "b"])))
durations = st.lists(st.tuples(st.sampled_from(SECONDS), st.floats(0, 9)))


def tally(counted, observed) -> Tally:
    made = Tally()
    for name, amount, label in counted:
        made.count(name, amount, label)
    for name, seconds in observed:
        made.observe(name, seconds)
    return made


@given(st.lists(st.tuples(counts, durations), max_size=4))
def test_tallies_add_up_to_what_was_counted_whatever_way_they_travelled(parts):
    total = Tally()
    for part in parts:
        total.add(Tally.from_dict(json.loads(json.dumps(tally(*part).to_dict()))))
    whole = tally([each for part, _ in parts for each in part], [each for _, part in parts for each in part])
    assert total.to_dict() == whole.to_dict()
    assert total.empty == whole.empty


def test_adding_does_not_change_what_is_added():
    one, other = tally([("saves", 1, "")], [("save_seconds", 1.0)]), Tally()
    other.add(one)
    other.add(one)
    assert one.to_dict() == {"counters": {"saves": {"": 1}}, "samples": {"save_seconds": [1.0]}}


def test_taking_begins_anew():
    made = tally([("saves", 1, "")], [])
    assert made.take().counters == {"saves": {"": 1}}
    assert made.empty


def test_durations_that_nobody_collects_are_bounded():
    made = Tally()
    for _ in range(MAX_SAMPLES + 5):
        made.observe("load_seconds", 1.0)
    made.add(Tally.from_dict(made.to_dict()))
    assert len(made.samples["load_seconds"]) == MAX_SAMPLES


def test_what_another_version_counts_is_left_out():
    assert Tally.from_dict({"counters": {"news": {"": 1}}, "samples": {"olds": [1]}, "more": 1}).empty


def test_the_line_for_the_log_is_short():
    made = tally([("loads", 2, "loaded"), ("load_bytes", 10, "")], [("load_seconds", 0.5), ("load_seconds", 1.5)])
    assert made.summary() == {"loads loaded": 2, "load_bytes": 10, "mean load_seconds": 1.0, "max load_seconds": 1.5}
