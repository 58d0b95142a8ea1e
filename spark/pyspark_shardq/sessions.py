"""Starts a session of Spark on this machine, or uses the active one.

```
 session() ─┬─ one is active ───────────► used as it is
            ├─ started by spark-submit ─► with the settings of spark-submit
            ├─ sc://host ───────────────► Spark Connect; the Java is the server's
            └─ local[..] ───────────────► a Java that is found, or PyPI's ─► a quiet one on loopback
```

spark-submit configures clusters.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.errors import MissingExtra, UsageError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

JAVA_MAJORS = (17, 21, 25)
"""Source: the overview of Spark 4.2's documentation."""
_CONNECT = "sc://"
_MASTER = re.compile(
    r"(?:local(?:\[(?:\*|\d+)(?:,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn"
    r"|(?:spark|k8s|sc)://.+)\Z"
)
_MEMORY = re.compile(r"(\d{1,9})([mMgGtT])[bB]?\Z")
_SHIFTS = {"m": 20, "g": 30, "t": 40}
_MEMORY_LEAST_BYTES = 512 << 20
"""The least memory with which Spark starts."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The variable that spark-submit sets once it has started Java."""
_LOG = Path(__file__).with_name("log4j2.properties")
_FLAGS = "spark.driver.extraJavaOptions"
_ALL = {"spark.sql.session.timeZone": "UTC"}
_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
_LAUNCHER = """\
#!/bin/sh
# Starts a Java for Spark without a module that PyPI's Java lacks, and others warn of.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def session(
    name: str = "shardq",
    *,
    master: str = "local[*]",
    memory: str = "1g",
    **settings: str | int | bool,
) -> SparkSession:
    """A session of Spark that knows the data source `shardq`.

    An active session is used as it is. A session that spark-submit has begun keeps the settings of
    spark-submit. Else a session is started: it is quiet, and its time zone is UTC. It has no web
    page without `**{"spark.ui.enabled": True}`. If all of it is on this machine, it listens on
    loopback alone. It runs on the Java of `JAVA_HOME`, of `PATH`, or of PyPI, which `shardq-spark`
    depends on.

    Args:
        name: What Spark calls it.
        master: `local[*]`, `local[2]`, `spark://host:7077`, or `sc://host:15002` for Spark Connect.
        memory: The memory of the Java that is started, as Spark writes it: `1g`, `512m`.
        settings: Settings of Spark, which override those above. Their names have dots, so pass them
            as `**{"spark.sql.shuffle.partitions": 8}`.

    Raises:
        MissingExtra: If there is no Java, or Spark Connect lacks a part.
        UsageError: If Spark cannot be started with these arguments.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from pyspark_shardq.source import register

    try:
        made = SparkSession.active()
    except PySparkRuntimeError:
        made = _started(name, master, memory, {key: _text(settings[key]) for key in settings})
    register(made)
    return made


def _started(name: str, master: str, memory: str, settings: Mapping[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    given: dict[str, bool | float | int | str | None] = {**_ALL, **settings}
    _check(master, memory)
    if _SUBMITTED in os.environ:
        return builder.config(map=given).getOrCreate()
    if master.startswith(_CONNECT):
        try:
            return builder.remote(master).config(map=given).getOrCreate()
        except ImportError as error:
            raise MissingExtra(
                f"Spark Connect lacks a part ({error}): pip install 'pyspark[connect]'."
            ) from error
    level = settings.get("spark.log.level", "OFF")
    flags = [
        f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
        f"-Dshardq.log={level}",
        settings.get(_FLAGS, ""),
    ]
    # The executors of a cluster have to reach this process.
    own = {**_QUIET, **(_LOCAL if master.startswith("local") else {})}
    own["spark.driver.memory"] = memory
    given = {**own, **given, _FLAGS: " ".join(flags).strip()}
    with _environment(master):
        try:
            return builder.master(master).config(map=given).getOrCreate()
        except (PySparkException, Py4JError) as error:
            raise UsageError(
                f"Spark does not start with master {master!r}, memory {memory!r} and these "
                f"settings: {_reason(error)}"
            ) from error


def _check(master: str, memory: str) -> None:
    """Refuse arguments that Java would refuse with a page of output."""
    if not _MASTER.match(master):
        raise UsageError(
            f"the master {shown(master)} is none that Spark knows; give local[*], local[4], yarn, "
            f"spark://host:7077, k8s://https://host:443, or sc://host:15002 for Spark Connect."
        )
    found = _MEMORY.match(memory)
    if not found or int(found[1]) << _SHIFTS[found[2].lower()] < _MEMORY_LEAST_BYTES:
        raise UsageError(f"memory must be 512m or more, such as 1g, not {shown(memory)}.")


def _reason(error: Exception) -> str:
    """The first line of Java's reason."""
    told = str(error).partition("\n: ")[2] or str(error)
    return " ".join((told.strip() or "it gives no reason.").splitlines()[0].split())


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _environment(master: str) -> Iterator[None]:
    """While this lasts, Spark starts a suitable Java, and on this machine this Python.

    Otherwise Spark would start the `python3` of `PATH`, which need not have shardq.
    """
    from shardq.node.runtime import cache_directory

    wanted = {"JAVA_HOME": str(java_home(cache_directory()))}
    if master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        wanted["PYSPARK_PYTHON"] = sys.executable
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def java_home(cache: Path) -> Path:
    """A directory whose `bin/java` runs Spark, even if the Java that is found lacks modules.

    Args:
        cache: Where the directory is made, unless it exists.

    Raises:
        MissingExtra: If no Java is found.
    """
    from shardq.node.java import JavaNeed, search

    java = search(JavaNeed("Spark", JAVA_MAJORS, package="shardq-spark", otherwise=MissingExtra))
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    home = cache / f"java-{zlib.crc32(text.encode()):08x}"
    launcher = home / "bin" / "java"
    if not launcher.exists():
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Written beside it, then renamed: other processes may make this launcher at the same time.
        partial = launcher.with_name(f"java.{os.getpid()}")
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(launcher)
    return home
