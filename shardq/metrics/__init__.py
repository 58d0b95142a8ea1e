"""Metrics for Prometheus: a collector for your own registry. Needs the extra `metrics`.

```python
from prometheus_client import REGISTRY, start_http_server
import shardq
from shardq.metrics import Collector

db = shardq.connect("sqlite:///jobs.db")
REGISTRY.register(Collector(db))
start_http_server(9100)
```

```
 named     every metric: its kind, its help text, its labels
 reading   the store by one look, a process by its meter ──► collector  Prometheus's own objects
 exporter  the page of a process, or of several together
```
"""

from __future__ import annotations

from shardq.errors import MissingExtra

try:
    import prometheus_client as _prometheus_client
except ImportError as error:
    raise MissingExtra(
        "metrics need prometheus-client; install it: pip install 'shardq[metrics]'."
    ) from error

from shardq.metrics.collector import Collector

del _prometheus_client

__all__ = ["Collector"]
