"""Names of Celery and other queues, and the names that shardq has instead, for users who switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_ATTEMPTS = "say attempts=, which counts the first run too"
_KEEP = "say keep=, how long a result is kept; without it none is"
_OPTIONS = {
    "acks_late": "leave it out: a job is acked after it has run",
    "autoretry_for": "say retry_on=",
    "bind": "leave it out: current() is the running job",
    "countdown": "say delay=, '60s' or a timedelta",
    "default_retry_delay": "say backoff=",
    "dont_autoretry_for": "say bury_on=",
    "eta": "say due=, an aware datetime",
    "ignore_result": _KEEP,
    "job_id": "say id=",
    "job_timeout": "say timeout=",
    "max_retries": _ATTEMPTS,
    "queue_name": "say queue=",
    "rate_limit": "say rate=, which counts over all workers",
    "result_ttl": _KEEP,
    "retries": _ATTEMPTS,
    "retry_backoff": "say backoff=",
    "retry_delay": "say backoff=",
    "soft_time_limit": "say timeout=",
    "store_results": _KEEP,
    "task_id": "say id=, or key= to find it by",
    "throws": "say bury_on=",
    "time_limit": "say timeout=",
}
_METHODS = {
    "apply": "call the function itself, task(..)",
    "apply_async": "it is task.using(delay=.., queue=..).put(..)",
    "delay": "it is task.put(..)",
    "enqueue": "it is task.put(..)",
    "map": "it is task.put_many(..)",
    "request": "current() is the running job",
    "retry": "let the function raise Retry('60s')",
    "s": "it is task.of(..)",
    "schedule": "it is task.using(delay=..).put(..)",
    "send": "it is task.put(..)",
    "send_with_options": "it is task.using(delay=..).put(..)",
    "si": "it is task.of(..)",
    "signature": "it is task.of(..)",
    "starmap": "it is task.put_many(..)",
}


def option_here(name: str) -> str | None:
    """The replacement for an option of another queue; None for any other name."""
    return _OPTIONS.get(name)


class FromElsewhere:
    """A task whose missing attributes raise an error that names their replacement."""

    if not TYPE_CHECKING:
        # Hidden from type checkers, which would otherwise accept any attribute.
        def __getattr__(self, name: str) -> Any:
            instead = _METHODS.get(name)
            hint = "" if instead is None else f"; {instead}"
            raise AttributeError(f"a task has no attribute {name!r}{hint}", name=name, obj=self)
