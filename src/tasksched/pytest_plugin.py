"""The pytest fixture ``tasksched_harness``: ``async with tasksched_harness(app) as h: …``."""

from typing import Any

import pytest


@pytest.fixture
def tasksched_harness() -> Any:
    """``tasksched.testing.harness``, loaded when a test asks for it."""
    from tasksched.testing import harness  # noqa: PLC0415 - a plugin is loaded by every pytest run

    return harness
