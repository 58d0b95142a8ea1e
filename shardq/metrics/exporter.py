"""The page of metrics that Prometheus scrapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from shardq.health.page import HealthResponse
from shardq.metrics.collector import Families

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.metrics.collector import Read


def page_of(read: Read) -> Callable[[], HealthResponse]:
    """The route of `/metrics`.

    Args:
        read: Reads the metrics, of one process or of several.
    """
    registry = CollectorRegistry()
    registry.register(Families(read))
    return lambda: HealthResponse(200, CONTENT_TYPE_LATEST, generate_latest(registry))
