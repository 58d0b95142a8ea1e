"""Spark elsewhere than in this process: a server of Spark Connect, and a cluster of processes.

Each is a program of its own, for a process has one kind of session. They need what
`pyspark[connect]` brings, pandas among it: scripts/nightly gives them an environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

import shardq

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

TIMEOUT_S = 300
CONNECT = """
from pyspark.sql import SparkSession
SparkSession.builder.remote("local[2]").getOrCreate()
"""
CLUSTER = """
from pyspark_shardq import session
session("cluster", master="local-cluster[2,1,1024]")
"""
JOB = """
import json, sys
from pyspark.sql import functions as F
from pyspark_shardq import connect, session

spark = session()
queue = connect(spark, *sys.argv[1:])
due = F.timestamp_millis(F.lit(4_000_000_000_000) + F.col("id"))
frame = spark.range(1_000).select(F.concat(F.lit("m"), "id").alias("key"), due.alias("due"))
put = queue.schedule(frame, key="key", due="due", create=True).run()
more = spark.range(10).select(F.lit("raw").alias("body"), due.alias("due"))
writer = more.write.format("shardq").option("store", queue.store).option("queue", queue.name)
writer.mode("append").save()
read = queue.read(bodies=True)
print(json.dumps({
    "class": type(spark).__module__,
    "rows": put.rows,
    "read": read.count(),
    "pushed": read.where("due < timestamp_millis(4000000000010)").count(),
    "bodies": sorted({bytes(row.body)[:4].decode() for row in read.select("body").collect()}),
    "waits": queue.backlog().to_json()["messages"],
}))
"""


def run_apart(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, in this Python, as all that Spark starts for it."""
    home = str(Path(pyspark.__file__).parent)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": home},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def told_by(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a program has printed last."""
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


WANTED = {"rows": 1_000, "read": 1_010, "pushed": 20, "bodies": ["raw", '{"ke'], "waits": 1_010}


def test_jobs_reads_and_writes_work_through_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="scripts/nightly spark installs what Connect needs")

    told = told_by(run_apart(CONNECT + JOB, "mail", f"sqlite:///{tmp_path}/jobs.db"))

    assert told.pop("class").startswith("pyspark.sql.connect")
    assert told == WANTED
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        assert db.queue("mail", create=False).depth(exact=True).total == 1_010


@pytest.mark.cassandra
def test_jobs_reads_and_writes_work_on_a_cluster(cassandra_url: str) -> None:
    told = told_by(run_apart(CLUSTER + JOB, "spark-cluster", cassandra_url))

    assert told.pop("class").startswith("pyspark.sql.session")
    assert told == WANTED


def test_sqlite_is_refused_on_a_cluster(tmp_path: Path) -> None:
    done = run_apart(CLUSTER + JOB, "mail", f"sqlite:///{tmp_path}/jobs.db")

    assert done.returncode != 0
    assert "keep the queue in Cassandra" in done.stderr
    assert not (tmp_path / "jobs.db").exists()
