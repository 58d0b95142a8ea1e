"""shardq: a time-sharded priority and delay queue on Apache Cassandra or embedded SQLite."""

__version__ = "0.1.0"
