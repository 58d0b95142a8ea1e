"""How many examples hypothesis makes of a property; what else holds for all, `conftest.py` says."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("SHARDQ_TEST_EXAMPLES", "0"))
"""The number of examples of each property; 0: the few of each test."""


def bounded(examples: int, *, most: int | None = None, **more: Any) -> settings:
    """Settings for a number of examples, new in each run; a failure prints how to repeat it.

    Args:
        examples: How many, unless the run asks for another number.
        most: How many however many the run asks for, of a property whose examples take long.
    """
    asked = EXAMPLES or examples
    return settings(
        max_examples=asked if most is None else min(asked, most),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        **more,
    )
