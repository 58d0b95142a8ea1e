"""The options of the data source, read and checked once.

```
spark.read.format("shardq").option("store", url).option("queue", name).option("view", "dead").load()
```

Options are texts, and names are the same in any case, as all options of Spark. What each view has,
`views.py` says.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from shardq.connection import STORE_VARIABLE
from shardq.errors import BadSetting, BadUrl, UsageError, shown
from shardq.model import names
from shardq.stores.url import shown as url_shown
from shardq.stores.url import split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ACTS = PUT, UNDO, REDRIVE, DELETE = ("put", "undo", "redrive", "delete")
FROM_ENVIRONMENT = "env:"
"""The prefix of a variable's name: each process reads the store's url from that variable."""
PARTITIONS_MAX = 10_000
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark passes on and that are meant for itself."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a reader or a writer.

    Attributes:
        store: The store's url, or `env:NAME`: then each process reads it from its environment, and
            no password travels in what Spark sends around.
        queue: The queue's name.
        view: What is read: `messages`, `dead`, `history` or `shards`.
        bodies: True if messages are read with their bodies.
        since: From when on, of entry for the history and of due for all others: a time, or how long
            ago; None: all there is.
        until: Up to when, exclusive; None: all there is.
        purged: True if rows that a purge has reached are read as well.
        columns: The columns wanted, in their order; None: all.
        pushdown: True if filters are pushed down, which `spark.sql.python.filterPushdown.enabled`
            has to allow.
        partitions: Tasks of a read; None: two for each core.
        reach: Of a stream: how long before its end a message may have entered; None: as long as the
            history is kept.
        minutes_max: Of a stream: most minutes of ends in a micro-batch; None: all there are.
        act: Of a write: `put`, or `undo`, which deletes what its run has put; of a frame of dead
            messages `redrive` or `delete`.
        create: Of a write: True if the queue is made where there is none.
        piece: Of a write: most rows of a piece; None: as many as is usual.
        rate: Of a write: rows a second of all its tasks; None: as fast as it goes.
        report: Of a write: the name of the line that says what became of its rows; None: there is
            none.
        run: Of a write: its run's name; None: a run of its own.
        tasks: Of a write that has a rate: how many of its tasks run at a time.
    """

    store: str
    queue: str
    view: str = "messages"
    bodies: bool = True
    since: str | None = None
    until: str | None = None
    purged: bool = False
    columns: tuple[str, ...] | None = None
    pushdown: bool = False
    partitions: int | None = None
    reach: str | None = None
    minutes_max: int | None = None
    act: str = PUT
    create: bool = False
    piece: int | None = None
    rate: float | None = None
    report: str | None = None
    run: str | None = None
    tasks: int | None = None

    @classmethod
    def of_reader(cls, given: Mapping[str, str]) -> Options:
        """The options of a read.

        Raises:
            UsageError: If one is unknown or unreadable, or no queue is named.
        """
        return cls._of(given, _READ, f"a read from shardq; there are {', '.join(_READ)}")

    @classmethod
    def of_writer(cls, given: Mapping[str, str]) -> Options:
        """The options of a write; those of a read, which a view of SQL may have, do nothing.

        Raises:
            UsageError: If one is unknown or unreadable, or no queue is named.
        """
        options = cls._of(
            given, _READ | _WRITE, f"a write to shardq; there are store, queue, {', '.join(_WRITE)}"
        )
        if options.rate is not None and options.tasks is None:
            raise BadSetting(
                "option rate is of the whole write, so say in option tasks how many of its tasks "
                "run at a time."
            )
        return options

    @classmethod
    def _of(cls, given: Mapping[str, str], table: _Table, of: str) -> Options:
        known = {name.lower(): (name, *told) for name, told in table.items()}
        values: dict[str, Any] = {}
        for name, text in given.items():
            if name.lower() in known:
                own_name, place, read = known[name.lower()]
                values[place] = read(own_name, text)
            elif name.lower() not in _SPARKS_OWN:
                raise BadSetting(f"{name.lower()!r} is no option of {of}.")
        if "queue" not in values:
            raise UsageError(
                "no queue was named; give its name, as in .option('queue', 'reminders')."
            )
        values.setdefault("store", FROM_ENVIRONMENT + STORE_VARIABLE)
        return cls(**values)

    @property
    def task_rate(self) -> float | None:
        """Rows a second of each task; None: as fast as it goes."""
        return None if self.rate is None or self.tasks is None else self.rate / self.tasks

    @property
    def url(self) -> str:
        """The store's url, in this process.

        Raises:
            BadUrl: If it is to come from the environment, which has none.
        """
        return url_of(self.store)


def url_of(store: str) -> str:
    """The url that a text names: itself, or that of the environment where it is `env:NAME`.

    Raises:
        BadUrl: If that is not set in this process.
    """
    if not store.startswith(FROM_ENVIRONMENT):
        return store
    variable = store.removeprefix(FROM_ENVIRONMENT)
    url = os.environ.get(variable)
    if not url:
        raise BadUrl(
            f"the environment variable {variable} names no store; set it for Spark's driver and "
            f"its executors, or give a url: .option('store', 'cassandra://host:9042/keyspace')."
        )
    return url


def refuse_store(url: str, master: str | None) -> None:
    """Raise where Spark's processes cannot all have a store.

    Args:
        url: The store's.
        master: Where Spark runs, `local[2]` or `spark://host:7077` say; None where that is not
            known.

    Raises:
        BadUrl: If the store is in memory, or is SQLite and Spark is a cluster.
    """
    parts = split(url)
    if parts.scheme != "sqlite":
        return
    if parts.path in ("", "/:memory:"):
        raise BadUrl(
            f"the store {url_shown(url)} is in the memory of one process, and Spark has several; "
            f"name a file, as sqlite:///jobs.db does, or Cassandra."
        )
    if master is not None and not is_local(master):
        raise BadUrl(
            f"the store {url_shown(url)} is a file of one machine, and Spark runs on a cluster, "
            f"{master}; keep the queue in Cassandra (cassandra://host:9042/keyspace), or run Spark "
            f"with the master local[*]."
        )


def refuse_in_task(url: str) -> None:
    """Raise as `refuse_store` does, in a task, which always knows where Spark runs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    refuse_store(url, None if context is None else context.getLocalProperty("spark.master"))


def cores_of(master: str | None) -> int:
    """The number of tasks that run at once, by the master's name; else this machine's cores.

    >>> cores_of("local[2,4]"), cores_of("local")
    (2, 1)
    """
    if master == "local":
        return 1
    named = re.match(r"local\[(\d+)", master or "")
    return max(1, int(named[1])) if named else os.cpu_count() or 1


def is_local(master: str) -> bool:
    """True if all of Spark's tasks run on one machine, in one Java.

    >>> is_local("local[2,4]"), is_local("local-cluster[2,1,1024]"), is_local("yarn")
    (True, False, False)
    """
    return master == "local" or master.startswith("local[")


def _text(_name: str, text: str) -> str:
    return text


def _queue(_name: str, text: str) -> str:
    return names.queue_name(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadSetting(f"option {name} must be true or false, not {shown(text)}.")
    return text.lower() == "true"


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= PARTITIONS_MAX):
        raise BadSetting(
            f"option {name} must be a whole number, 1 to {PARTITIONS_MAX:,}, not {shown(text)}."
        )
    return int(text)


def _listed(name: str, text: str) -> tuple[str, ...]:
    listed = tuple(part.strip() for part in text.split(","))
    if "" in listed or len(set(listed)) < len(listed):
        raise BadSetting(
            f"option {name} must be names with commas between them, each once, not {shown(text)}."
        )
    return listed


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e12:
        raise BadSetting(f"option {name} must be a number above 0, not {shown(text)}.")
    return number


def _whole(name: str, text: str) -> int:
    return int(_number(name, text))


def _act(name: str, text: str) -> str:
    if text not in ACTS:
        raise BadSetting(f"option {name} must be {' or '.join(ACTS[:2])}, not {shown(text)}.")
    return text


_Table: TypeAlias = "dict[str, tuple[str, Callable[[str, str], object]]]"
_READ: _Table = {
    "store": ("store", _text),
    "queue": ("queue", _queue),
    "view": ("view", _text),
    "bodies": ("bodies", _flag),
    "since": ("since", _text),
    "until": ("until", _text),
    "purged": ("purged", _flag),
    "columns": ("columns", _listed),
    "pushdown": ("pushdown", _flag),
    "numPartitions": ("partitions", _count),
    "reach": ("reach", _text),
    "maxMinutes": ("minutes_max", _count),
}
"""Options that readers know: the attribute of each, and how its text is read."""
_WRITE: _Table = {
    "act": ("act", _act),
    "create": ("create", _flag),
    "piece": ("piece", _whole),
    "rate": ("rate", _number),
    "report": ("report", _text),
    "run": ("run", _text),
    "tasks": ("tasks", _whole),
}
"""Options that only writers know."""
