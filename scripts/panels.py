"""The dashboard for Grafana: its panels, and the JSON that Grafana imports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

WIDTH, HEIGHT, ACROSS = 8, 8, 3
"""The size of a panel in Grafana's grid of 24 columns, and the panels in a row."""
QUEUE = '{queue=~"$queue"}'


class Panel(NamedTuple):
    """A panel: its title, its unit as Grafana names it, and legend -> expression."""

    title: str
    unit: str
    targets: dict[str, str]


def _rate(name: str) -> str:
    return f"sum by (queue) (rate({name}{QUEUE}[$__rate_interval]))"


def _quantile(name: str, share: float, by: str, chosen: str = QUEUE) -> str:
    return (
        f"histogram_quantile({share}, sum by (le, {by}) "
        f"(rate({name}_bucket{chosen}[$__rate_interval])))"
    )


PANELS = [
    Panel("Oldest due", "s", {"{{queue}}": f"max by (queue) (shardq_oldest_due_seconds{QUEUE})"}),
    Panel("Lateness, p99", "s", {"{{queue}}": _quantile("shardq_lateness_seconds", 0.99, "queue")}),
    Panel(
        "Ready and in flight",
        "short",
        {
            "{{queue}} {{state}}": "max by (queue, state) "
            '(shardq_messages{queue=~"$queue", state=~"ready|in_flight"})'
        },
    ),
    Panel(
        "Put and acked a second",
        "ops",
        {
            "{{queue}} put": _rate("shardq_put_total").replace("sum", "max"),
            "{{queue}} acked": _rate("shardq_acked_total").replace("sum", "max"),
        },
    ),
    Panel(
        "Retried and died a second",
        "ops",
        {
            "{{queue}} retried": _rate("shardq_retried_total").replace("sum", "max"),
            "{{queue}} died": _rate("shardq_buried_total").replace("sum", "max"),
        },
    ),
    Panel(
        "Dead",
        "short",
        {"{{queue}}": 'max by (queue) (shardq_messages{queue=~"$queue", state="dead"})'},
    ),
    Panel(
        "Run time by task, p95", "s", {"{{task}}": _quantile("shardq_run_seconds", 0.95, "task")}
    ),
    Panel(
        "Runs by task and outcome",
        "ops",
        {
            "{{task}} {{outcome}}": "sum by (task, outcome) "
            f"(rate(shardq_run_seconds_count{QUEUE}[$__rate_interval]))"
        },
    ),
    Panel(
        "Workers, and threads that run",
        "short",
        {
            "{{queue}} workers": f"max by (queue) (shardq_workers{QUEUE})",
            "{{queue}} busy": 'max by (queue) (shardq_threads{queue=~"$queue", state="busy"})',
        },
    ),
    Panel(
        "Due within an hour",
        "short",
        {"{{queue}}": f"max by (queue) (shardq_due_next_hour{QUEUE})"},
    ),
    Panel(
        "Calls of the store, p99",
        "s",
        {"{{operation}}": _quantile("shardq_store_seconds", 0.99, "operation", "")},
    ),
    Panel(
        "Errors of the store, and clocks",
        "short",
        {
            "{{kind}}": "sum by (kind) (rate(shardq_store_errors_total[$__rate_interval]))",
            "{{instance}} ahead, s": "shardq_clock_offset_seconds",
        },
    ),
]


def dashboard() -> dict[str, Any]:
    """The JSON that Grafana imports; at the import it asks for the source of the data."""
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": panel.title,
            "datasource": source,
            "gridPos": {
                "x": number % ACROSS * WIDTH,
                "y": number // ACROSS * HEIGHT,
                "w": WIDTH,
                "h": HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + at), "expr": expr, "legendFormat": legend}
                for at, (legend, expr) in enumerate(panel.targets.items())
            ],
        }
        for number, panel in enumerate(PANELS)
    ]
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
            }
        ],
        "title": "shardq",
        "uid": "shardq",
        "tags": ["shardq"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "queue",
                    "type": "query",
                    "datasource": source,
                    "query": "label_values(shardq_messages, queue)",
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                }
            ]
        },
        "panels": panels,
    }


def text() -> str:
    """The dashboard as the text of its file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
