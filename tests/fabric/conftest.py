"""The conformance suite's asserts say what they compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.fabric.conformance_moves", "tests.fabric.conformance_endings")
