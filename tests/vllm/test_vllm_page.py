"""docs/vllm.md names every option and metric as the code has them."""

import re
from pathlib import Path

import pytest

from pykvpool_connector.vllm.reference import METRIC_PREFIX, fill
from pykvpool_connector.vllm.settings import options
from pykvpool_connector.vllm.tally import METRICS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "vllm.md"


def test_the_pages_tables_are_the_codes():
    page = PAGE.read_text("utf-8")
    assert fill(page) == page, "run: python -m pykvpool_connector.vllm.reference docs/vllm.md"
    for option in options():
        assert f"| `{option.name}` |" in page
    for name in METRICS:
        assert f"| `{METRIC_PREFIX}{name}" in page


def test_every_report_names_a_test_that_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text("utf-8"))
    assert named
    for file, test in named:
        source = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE), f"{file}::{test}"


def test_no_report_is_without_a_test():
    _, _, section = PAGE.read_text("utf-8").partition("\n## What was reported of others")
    rows = [line for line in section.splitlines() if re.match(r"\| (vLLM|LMCache|sglang)", line)]
    assert len(rows) >= 20
    assert not [row for row in rows if not re.search(r"`tests/[\w/]+\.py::\w+`", row)]


def test_a_page_without_a_place_for_a_table_is_refused():
    with pytest.raises(ValueError, match="options"):
        fill("# A page")
