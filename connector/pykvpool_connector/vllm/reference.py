"""Writes the tables of docs/vllm.md from the code: ``python -m pykvpool_connector.vllm.reference docs/vllm.md``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from pykvpool.config.kinds import Kind
from pykvpool.config.quantities import Size
from pykvpool_connector.vllm.settings import options
from pykvpool_connector.vllm.tally import METRICS

#: Stands before every metric's name.
METRIC_PREFIX = "vllm:pykvpool_"


def tables() -> dict[str, str]:
    """Markdown by the name of its place: ``<!-- name -->`` above it, ``<!-- /name -->`` below."""
    return {
        "options": _table(
            ("option", "kind", "allowed", "default", "meaning"),
            (
                (f"`{each.name}`", each.kind.name, _bounds(each.kind), _default(each.kind, each.default), each.meaning)
                for each in options()
            ),
        ),
        "metrics": _table(
            ("metric", "label", "meaning"),
            (
                (
                    f"`{METRIC_PREFIX}{name}{'' if metric.seconds else '_total'}`",
                    f"`{metric.label}`" if metric.label else "",
                    metric.help,
                )
                for name, metric in METRICS.items()
            ),
        ),
    }


def fill(page: str) -> str:
    """The page with its tables as the code has them. Raises `ValueError` where a place for one is missing."""
    for name, table in tables().items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not begin or not end:
            raise ValueError(f"the page has no place for the table of {name}: <!-- {name} --> and <!-- /{name} -->")
        page = f"{before}{begin}{table}{end}{after}"
    return page


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _bounds(kind: Kind[object]) -> str:
    """What is allowed, but for the empty choice, which the meaning tells of."""
    return kind.bounds.removeprefix("``, ")


def _default(kind: Kind[object], value: object) -> str:
    if isinstance(kind, Size):
        return f"`{value}`"
    return f"`{json.dumps(value)}`"


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fill(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
