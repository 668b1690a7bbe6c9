"""`make test-gpu`: the tests on a real GPU where there is one, one line that says what is missing where not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from pykvpool.errors import PoolError
from pykvpool.memory.cuda_python import load_driver


def missing() -> str | None:
    """Why the tests cannot run here."""
    try:
        driver = load_driver()
        if not driver.device_count():
            return "the driver knows no GPU"
    except PoolError as error:
        return error.message
    if importlib.util.find_spec("torch") is None:
        return "the tests move torch tensors: pip install torch"
    return None


def main() -> int:
    reason = missing()
    if reason is not None:
        print(f"no GPU tests here: {reason}")
        return 0
    import pytest

    return int(pytest.main([str(Path(__file__).parent), *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
