"""Programs in Java for the nodes that `shardq node` has started: `nodetool`, and the tests' own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.errors import NodeError
from shardq.node import config, runtime, state

if TYPE_CHECKING:
    from shardq.node.runtime import Runtime

_TIMEOUT_S = 120
_PROBE_S = 30
_PROGRAM = "org.apache.cassandra.tools.NodeTool"
_COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"
_RMI_MODULE = "jdk.naming.rmi"
_RMI_SOURCE = Path(__file__).with_name("rmiURLContextFactory.java")
_LOGBACK = """\
<configuration>
  <appender name="ERRORS" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%-5level %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="ERRORS"/></root>
</configuration>
"""
"""The logging of nodetool, which must not log to stdout: its answer is there."""


def nodetool(*arguments: str, directory: str | Path | None = None, number: int = 1) -> str:
    """Run `nodetool`; returns what it prints.

    Args:
        *arguments: Such as `"status"` or `"tablestats", "shardq.messages"`.
        directory: As for `shardq.node.start`.
        number: The node that is asked, 1 for the first.

    Raises:
        NodeError: If there is no such node, or nodetool fails; the text has its output.
    """
    there = state.load(state.home(directory))
    if there is None or not 1 <= number <= len(there.nodes):
        raise NodeError(f"there is no node {number} in {state.home(directory)}.")
    node = there.nodes[number - 1]
    arguments_file = _written(there.directory_of(node))
    command = [
        *(str(there.java), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(f"@{arguments_file}", _PROGRAM),
        *("-h", "127.0.0.1", "-p", str(node.jmx_port), *arguments),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NodeError(
            f"nodetool {' '.join(arguments)} took longer than {_TIMEOUT_S} s there."
        ) from error
    if done.returncode:
        raise NodeError(
            f"nodetool {' '.join(arguments)} failed on node {number}:\n"
            f"{(done.stdout + done.stderr).strip()}"
        )
    return done.stdout


def _written(directory: Path) -> Path:
    """Write the files that nodetool needs for the node of a directory; returns its flags' file."""
    found, classes = runtime.find(), directory / "classes"
    logback, flags = directory / "logback-tool.xml", directory / "tool.args"
    logback.write_text(_LOGBACK)
    needed = classes if _compile_rmi_lookup(found, classes) else None
    flags.write_text(
        config.argument_file(
            [
                *config.class_flags(found, directory, needed),
                f"-Dlogback.configurationFile={logback}",
                "-Djava.naming.factory.url.pkgs=shardq",
            ]
        )
    )
    return flags


def _compile_rmi_lookup(found: Runtime, classes: Path) -> bool:
    """Compile a class that nodetool needs if Java lacks `jdk.naming.rmi`, as PyPI's Java does.

    Args:
        found: The Java in question, and the jars.
        classes: The directory of the compiled class; one that exists is kept.

    Returns:
        True if `classes` is needed.

    Raises:
        NodeError: If it cannot be compiled.
    """
    described = subprocess.run(
        [str(found.java), "--describe-module", _RMI_MODULE],
        capture_output=True,
        timeout=_PROBE_S,
        check=False,
    )
    if described.returncode == 0:
        return False
    if not any(classes.rglob("*.class")):
        compile_java(found, _RMI_SOURCE, classes)
    return True


def compile_java(found: Runtime, source: Path, classes: Path) -> None:
    """Compile a file with the compiler of Cassandra's jars, because a Java may come without one.

    Args:
        found: The Java, and the jars.
        source: The file.
        classes: The directory of the compiled classes.

    Raises:
        NodeError: If it cannot be compiled.
    """
    # Put only the compiler on the class path: other jars have classes of packages that are Java's
    # own.
    compiler = next(jar for jar in found.jars if jar.name.startswith("ecj-"))
    command = [str(found.java), "-cp", str(compiler), _COMPILER, "-11", "-nowarn"]
    done = subprocess.run(
        [*command, "-d", str(classes), str(source)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise NodeError(f"{source.name} cannot be compiled:\n{(done.stdout + done.stderr).strip()}")
