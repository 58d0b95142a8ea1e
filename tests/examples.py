"""How many examples hypothesis makes of a property; what else holds for all, `conftest.py` says."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("SHARDQ_TEST_EXAMPLES", "0"))
"""So many examples of each property instead of a few."""


def bounded(examples: int, **more: Any) -> settings:
    """So many examples, others in each run; a failure prints the line that repeats it."""
    return settings(
        max_examples=EXAMPLES or examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        **more,
    )
