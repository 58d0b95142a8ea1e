"""A genuine Apache Cassandra on this machine's loopback, without Docker.

For development, tests and benchmarks.

```
 start ─ runtime: Java 17, the jars ─ config: ports, yaml, flags ─ cluster: processes, readiness
                                                                      │
 <directory>/cluster.json  which runs where    node1/ node2/ ..  data, cassandra.yaml, system.log
 status, stop and kill read it, so any process can end the nodes of another
```

It is not for production: it skips fsync, so that a crash of the machine (not of the process) may
lose data.
"""

from shardq.node.cluster import (
    NodeState,
    Status,
    kill,
    start,
    status,
    stop,
)
from shardq.node.runtime import CASSANDRA_VERSION
from shardq.node.state import DIRECTORY_VARIABLE, KEYSPACE, Node, NodeSet

__all__ = [
    "CASSANDRA_VERSION",
    "DIRECTORY_VARIABLE",
    "KEYSPACE",
    "Node",
    "NodeSet",
    "NodeState",
    "Status",
    "kill",
    "start",
    "status",
    "stop",
]
