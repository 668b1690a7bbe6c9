"""The generated pages of docs/. ``python -m pykvpool.observe.reference docs`` writes them (`make reference`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pykvpool.config.reference import configuration_markdown
from pykvpool.core.counters import MEANINGS
from pykvpool.metrics.reference import metrics_markdown
from pykvpool.observe.errors_page import errors_markdown
from pykvpool.protocol.reference import messages_markdown

#: File name -> what writes its text.
PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration_markdown,
    "errors.md": errors_markdown,
    "metrics.md": partial(metrics_markdown, MEANINGS),
    "wire-messages.md": messages_markdown,
}


def write(directory: Path) -> None:
    """Write every page into `directory`."""
    for name, text in PAGES.items():
        (directory / name).write_text(text(), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
