"""Traces of OpenTelemetry: spans of puts and of runs, linked by headers of the message.

```
 span of yours ─► put: span "send mail" ─► headers traceparent, tracestate ─► the store
                                                 │ or of an HTTP request, or a schedule's firing
 run: span "process mail", a trace of its own ◄──┘ with a link to the put
```

`traces.py` makes the spans, `names.py` has the names of the conventions, `carrier.py` the headers.
Only `traces.py` needs the extra `otel`, once it is used.
"""

from shardq.tracing.traces import Traces

__all__ = ["Traces"]
