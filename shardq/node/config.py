"""The configuration of a local node: addresses, ports, `cassandra.yaml`, Java's flags, logging.

The nodes use little memory, start quickly, and keep all files below one directory. This module
starts nothing.
"""

from __future__ import annotations

import json
import os
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardq.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardq.node.runtime import Runtime

NODES_MAX = 5

_PORTS = range(20_000, 32_000)
"""Ports below those that systems give to outgoing connections, so that none is taken between choice
and use."""
_PORT_TRIES = 200
_RING = 2**64

_EXPORTS = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.unsupported/sun.misc",
)
_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.compiler/com.sun.tools.javac",
    "jdk.management/com.sun.management.internal",
)

LOGBACK = """\
<configuration>
  <appender name="FILE" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>${shardq.node}/system.log</file>
    <rollingPolicy class="ch.qos.logback.core.rolling.FixedWindowRollingPolicy">
      <fileNamePattern>${shardq.node}/system.log.%i</fileNamePattern>
      <minIndex>1</minIndex><maxIndex>2</maxIndex>
    </rollingPolicy>
    <triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">
      <maxFileSize>20MB</maxFileSize>
    </triggeringPolicy>
    <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="FILE"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a set: `native` and `storage` on each node's address, `jmx` on 127.0.0.1."""

    native: int
    storage: int
    jmx: tuple[int, ...]


def addresses(nodes: int) -> tuple[str, ...]:
    """The loopback addresses of a number of nodes.

    Raises:
        NodeError: If this machine lacks one; macOS has 127.0.0.1 alone until an alias is made.
    """
    wanted = ("127.0.0.1",) if nodes == 1 else tuple(f"127.0.0.{11 + i}" for i in range(nodes))
    lacking = [address for address in wanted if not _is_free(address, 0)]
    if lacking:
        aliases = "; ".join(f"sudo ifconfig lo0 alias {address} up" for address in lacking)
        raise NodeError(
            f"this machine has no {', '.join(lacking)}, which {nodes} nodes need. On macOS make "
            f"them with: {aliases}. Or start one node."
        )
    return wanted


def choose_ports(hosts: Sequence[str]) -> Ports:
    """Ports that are free on every one of the addresses.

    Raises:
        NodeError: If too few can be found.
    """
    chosen: list[int] = []
    # Choose at random, so that sets that are started at the same time get different ports.
    chance = random.SystemRandom()
    for _ in range(_PORT_TRIES):
        port = chance.choice(_PORTS)
        if port not in chosen and all(_is_free(host, port) for host in {*hosts, "127.0.0.1"}):
            chosen.append(port)
        if len(chosen) == 2 + len(hosts):
            return Ports(native=chosen[0], storage=chosen[1], jmx=tuple(chosen[2:]))
    raise NodeError(
        f"no free ports between {_PORTS.start} and {_PORTS.stop} on {', '.join(hosts)}."
    )


def tokens(nodes: int) -> tuple[int, ...]:
    """The first token of each node, evenly spread over the ring.

    >>> tokens(1)
    (0,)
    >>> tokens(3)
    (-9223372036854775808, -3074457345618258603, 3074457345618258602)
    """
    if nodes == 1:
        return (0,)
    return tuple(-(_RING // 2) + _RING * i // nodes for i in range(nodes))


def cassandra_yaml(
    *,
    address: str,
    token: int,
    seeds: Sequence[str],
    ports: Ports,
    settings: Mapping[str, object],
) -> str:
    """`cassandra.yaml` of a node, as JSON, which is YAML too.

    Args:
        address: The node's loopback address.
        token: The node's first token on the ring.
        seeds: All addresses of the set: seeds never bootstrap, so that they start together.
        ports: The set's ports.
        settings: Directives that replace or join these.
    """
    seed_list = ",".join(f"{seed}:{ports.storage}" for seed in seeds)
    directives: dict[str, object] = {
        "cluster_name": "shardq",
        "num_tokens": 1,
        "initial_token": str(token),
        "auto_bootstrap": False,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [
            {
                "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                "parameters": [{"seeds": seed_list}],
            }
        ],
        "listen_address": address,
        "rpc_address": address,
        "native_transport_port": ports.native,
        "storage_port": ports.storage,
        "commitlog_sync": "periodic",
        "commitlog_sync_period": "10000ms",
        "commitlog_segment_size": "8MiB",
        "commitlog_total_space": "128MiB",
        "memtable_heap_space": "64MiB",
        "memtable_offheap_space": "64MiB",
        "key_cache_size": "8MiB",
        "file_cache_size": "64MiB",
        "networking_cache_size": "32MiB",
        "auto_snapshot": False,
        # Allow TTLs beyond 2038 and the newest file formats: no older node has to read them.
        "storage_compatibility_mode": "NONE",
        "hinted_handoff_enabled": True,
        "max_hint_window": "3h",
        "hints_flush_period": "1000ms",
        # Let nodes notice within seconds that another one was killed.
        "phi_convict_threshold": 5,
        "paxos_variant": "v2",
    }
    return json.dumps(directives | dict(settings), indent=2) + "\n"


def node_flags(runtime: Runtime, directory: Path, *, nodes: int, jmx_port: int) -> list[str]:
    """Java's flags for a node of a set of `nodes`."""
    # A single node gets 1 GB. Three nodes stay under 4 GiB together.
    heap_mb = 1024 if nodes == 1 else 768 if nodes <= 3 else 512
    agent = runtime.agent
    return [
        *class_flags(runtime, directory, None),
        *([f"-javaagent:{agent}"] if agent else []),
        *("-XX:+UseG1GC", "-Xms256m", f"-Xmx{heap_mb}m", "-XX:MaxDirectMemorySize=256m"),
        *("-Xss512k", "-XX:+ExitOnOutOfMemoryError"),
        "-Djdk.attach.allowAttachSelf=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        f"-Dcassandra.config={(directory / 'cassandra.yaml').as_uri()}",
        f"-Dcassandra.storagedir={directory / 'data'}",
        f"-Dcassandra.logdir={directory}",
        f"-Dlogback.configurationFile={directory / 'logback.xml'}",
        f"-Dshardq.node={directory}",
        f"-Dcassandra.jmx.local.port={jmx_port}",
        "-Dcassandra-foreground=yes",
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        # With a shorter delay, nodes that start together forget each other: a node that is known
        # but silent for the ring's delay (1 s was too short) is taken for a client and removed.
        "-Dcassandra.ring_delay_ms=30000",
        "-Dcassandra.consistent.rangemovement=false",
        # Skip fsync, which is quicker; the system's page cache outlives a killed process. Do not
        # set `unsafesystem`: with it a killed node loses its schema, and so its commit log's rows.
        "-Dcassandra.skip_sync=true",
    ]


def class_flags(runtime: Runtime, directory: Path, classes: Path | None) -> list[str]:
    """Java's flags for anything that runs on Cassandra's class path.

    Args:
        runtime: Java and the jars.
        directory: The node's directory.
        classes: A directory of more classes; None: there are none.
    """
    scratch = directory / "tmp"
    return [
        *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTS),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
        # Keep native libraries, histories and crash reports below the directory too.
        f"-Djava.io.tmpdir={scratch}",
        f"-Djna.tmpdir={scratch}",
        f"-Duser.home={scratch}",
        f"-XX:ErrorFile={directory}/java_error_%p.log",
        "-XX:-UsePerfData",
        "-cp",
        runtime.classpath if classes is None else f"{classes}{os.pathsep}{runtime.classpath}",
    ]


def argument_file(flags: Sequence[str]) -> str:
    """The text of flags in an `@file` of Java: quoted, so that a path may hold spaces."""
    quoted = ('"' + flag.replace("\\", "\\\\").replace('"', '\\"') + '"' for flag in flags)
    return "\n".join(quoted) + "\n"


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Set this as Java's server sockets do: a port whose last connection is just closing counts
        # as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
