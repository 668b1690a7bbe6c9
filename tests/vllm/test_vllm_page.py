"""docs/vllm.md names every option and metric as the code has them."""

from pathlib import Path

import pytest

from pykvpool_connector.vllm.reference import METRIC_PREFIX, fill
from pykvpool_connector.vllm.settings import options
from pykvpool_connector.vllm.tally import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "vllm.md"


def test_the_pages_tables_are_the_codes():
    page = PAGE.read_text("utf-8")
    assert fill(page) == page, "run: python -m pykvpool_connector.vllm.reference docs/vllm.md"
    for option in options():
        assert f"| `{option.name}` |" in page
    for name in METRICS:
        assert f"| `{METRIC_PREFIX}{name}" in page


def test_a_page_without_a_place_for_a_table_is_refused():
    with pytest.raises(ValueError, match="options"):
        fill("# A page")
