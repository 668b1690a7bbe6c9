"""The generated pages are those that the code would write now."""

from pathlib import Path

import pytest

from pykvpool.config.schema import KEYS
from pykvpool.core.counters import MEANINGS
from pykvpool.errors import KINDS, PoolError
from pykvpool.metrics import METRICS
from pykvpool.observe.errors_page import ADVICE
from pykvpool.observe.reference import PAGES, write

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), f"docs/{name} is out of date: run make reference"


def test_every_kind_of_error_says_what_to_do_next() -> None:
    assert set(ADVICE) == set(KINDS.values())
    assert PoolError not in ADVICE
    assert all(advice.endswith(".") for advice in ADVICE.values())


def test_every_key_and_metric_is_on_its_page(tmp_path: Path) -> None:
    write(tmp_path)
    configuration = (tmp_path / "configuration.md").read_text()
    metrics = (tmp_path / "metrics.md").read_text()
    for key in KEYS.values():
        section = configuration.split(f"## [{key.section}]\n")[1].split("\n## ")[0]
        [row] = [line for line in section.splitlines() if line.startswith(f"| `{key.name}` |")]
        assert key.meaning in row
        assert (f"| `{key.flag}` |" in row) == bool(key.flag)
    assert all(f"`{each.name}`" in metrics for each in METRICS)
    assert all(f"`pykvpool_master_{name}` | {meaning}" in metrics for name, meaning in MEANINGS.items())
