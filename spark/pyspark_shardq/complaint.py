"""Turns an error of Spark's into one of shardq's, in one sentence.

```
 a task's or a planner's Python ── ShardqError ─► Java ─► PySparkException, its traceback in a text
                                                                        │
                               ShardqError of the same kind ◄── translated()
```

The errors are those of `shardq.errors`.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from shardq import errors
from shardq.errors import ShardqError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRACEBACK = "Traceback (most recent call last):\n"
_RAISED = re.compile(r"^([\w.]+)(?:: (.*))?\Z", re.DOTALL)
_OURS = "shardq.errors."
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r" ?SQLSTATE: \w+")
_SENTENCES_CHARS = 500
_ELSEWHERE = "; PYSPARK_PYTHON names a Python that has what this one has, on each machine."


def log_from(level: int) -> None:
    """Log errors that PySpark raises, each with the whole stack of Java, only from a level on."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(level)


@contextmanager
def translated() -> Iterator[None]:
    """Raise what Spark raises in here as an error of shardq's, with Spark's own as its cause.

    Raises:
        ShardqError: The very error, where it was shardq's in another process; `UsageError` where
            Spark refuses what it was asked, before anything is done; else what Spark says.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise read(error) from error


def read(error: Exception) -> ShardqError:
    """The error of shardq behind an error of Spark."""
    from pyspark.errors import AnalysisException

    # PySpark has no class for some errors: Py4J raises them, after a line about its call.
    text = re.sub(r"\AAn error occurred while calling .*\n: [\w.$]+(?:: )?", "", str(error))
    name, told = _raised(text)
    kind = getattr(errors, name.removeprefix(_OURS), None) if name.startswith(_OURS) else None
    if kind is not None:
        return cast("type[ShardqError]", kind)(told)
    if name:
        told = f"a Python process of Spark's failed: {name}: {told or 'no reason given'}"
        return ShardqError(told + (_ELSEWHERE if name == "ModuleNotFoundError" else ""))
    if isinstance(error, AnalysisException):
        return UsageError(f"Spark: {_sentence(text)}")
    return ShardqError(f"Spark: {_sentence(text)}")


def _raised(text: str) -> tuple[str, str]:
    """The last line of the last Python traceback in a text: the error's name, and its text."""
    _, found, after = text.rpartition(_TRACEBACK)
    if not found:
        return "", ""
    lines = after.splitlines()
    # Its frames are indented; what follows is the error, then perhaps what Java says.
    start = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    if start is None:
        return "", ""
    end = next((at for at, line in enumerate(lines[start:], start) if _is_java_s(line)), len(lines))
    match = _RAISED.match("\n".join(lines[start:end]).strip())
    return (match[1], " ".join((match[2] or "").split())) if match else ("", "")


def _is_java_s(line: str) -> bool:
    return not line.strip() or line.startswith(("\tat ", " SQLSTATE: ", "Driver stacktrace"))


def _sentence(text: str) -> str:
    """The first paragraph, without Spark's classes, plans and traces."""
    first = re.split(r"\n\s*\n|;\n|\n\s+at |\nJVM stacktrace|\nTraceback", text.strip())[0]
    line = " ".join(_STATE.sub("", _CLASS.sub("", first)).split())
    return line if len(line) <= _SENTENCES_CHARS else line[: _SENTENCES_CHARS - 3] + "..."
