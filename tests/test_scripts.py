"""The scripts that newcomers run, run as they are: the three roles, on SQLite."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from forked import DEVNULL, Process

import shardq

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPTS = Path(__file__).parent.parent / "scripts"
TIMEOUT_S = 300


# The scripts stand beside the package and import it, installed or from the checkout.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SCRIPTS.parent)}


def start(directory: Path, name: str, *arguments: str) -> Process:
    return Process([str(SCRIPTS / name), *arguments], cwd=directory, env=ENVIRONMENT)


def run(directory: Path, name: str, *arguments: str) -> tuple[int, list[str], str]:
    with start(directory, name, *arguments) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    return process.wait(), out.decode().splitlines(), err.decode()


def put(directory: Path, bodies: Sequence[str]) -> None:
    with shardq.connect(f"sqlite:///{directory}/shardq.db") as db:
        db.queue("demo").put_many(bodies)


def test_the_producer_puts_messages_due_in_a_minute(tmp_path: Path) -> None:
    code, lines, err = run(tmp_path, "producer.py", "--count", "3")
    assert (code, err) == (0, "")
    assert [line.split(",")[0] for line in lines] == [f"put message {n}" for n in (1, 2, 3)]
    with shardq.connect(f"sqlite:///{tmp_path}/shardq.db") as db:
        queue = db.queue("demo", create=False)
        waiting = queue.peek(limit=10)
        # Row ids carry the time of the put.
        delays_ms = [one.due_ms - one._row.entered_us // 1_000 for one in waiting]
    assert len(delays_ms) == 3
    assert all(0 < delay <= 60_010 for delay in delays_ms)


def test_the_consumer_takes_and_prints(tmp_path: Path) -> None:
    put(tmp_path, ["one", "two"])
    code, lines, err = run(tmp_path, "consumer.py", "--until-empty")
    assert (code, err) == (0, "")
    assert sorted(line.split(" UTC ")[1] for line in lines) == ["one", "two"]


def test_an_isolated_consumer_takes_from_minutes_that_are_over_alone(tmp_path: Path) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/shardq.db") as db:
        queue = db.queue("demo", offset="100ms", minute="100ms")
        queue.put_many(["one", "two"])
        last = queue.peek()[-1]._row.shard.minute
        over_ms, clock = queue._home.register.layout.end_ms(last), queue._home.clock
        code, lines, err = run(tmp_path, "consumer.py", "--until-empty", "--isolated")
        assert clock.now_ms() >= over_ms
    assert (code, err) == (0, "")
    assert sorted(line.split(" UTC ")[1] for line in lines) == ["one", "two"]


def test_the_consumer_leaves_a_job_of_a_task_to_its_worker(tmp_path: Path) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/shardq.db") as db:
        db.queue("demo").put("{}", id="nap-1", headers={"task": "app.nap"})
    code, lines, err = run(tmp_path, "consumer.py", "--until-empty")
    assert (code, lines) == (1, [])
    assert err == ("consumer: message nap-1 is a job of a task: run `shardq work MODULE:app`.\n")
    with shardq.connect(f"sqlite:///{tmp_path}/shardq.db") as db:
        assert [(one.id, one.attempt) for one in db.queue("demo").peek()] == [("nap-1", 0)]


def test_the_observer_shows_pending_and_total_of_each_open_shard(tmp_path: Path) -> None:
    put(tmp_path, ["one", "two"])
    with shardq.connect(f"sqlite:///{tmp_path}/shardq.db") as db:
        db.queue("demo").put("later", delay="1s")
    code, lines, err = run(tmp_path, "observer.py", "--once")
    assert (code, err) == (0, "")
    counts = [pair.split("/") for line in lines for pair in line.split()[3:]]
    assert sum(int(total) for _, total in counts) == 3
    assert sum(int(pending) for pending, _ in counts) in {2, 3}


@pytest.mark.parametrize("name", ["producer.py", "observer.py", "consumer.py"])
def test_ctrl_c_ends_a_script_without_a_traceback(tmp_path: Path, name: str) -> None:
    put(tmp_path, ["one"])
    with start(tmp_path, name) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("name", ["producer.py", "consumer.py", "observer.py"])
def test_a_wrong_keyspace_is_one_line(tmp_path: Path, name: str) -> None:
    code, lines, err = run(tmp_path, name, "-H", "127.0.0.1", "-K", "Bad-Name")
    assert (code, lines) == (1, [])
    assert err.startswith(f"{name.removesuffix('.py')}: ")
    assert "keyspace 'Bad-Name'" in err
    assert err.count("\n") == 1


def test_the_consumer_acks_nothing_that_a_full_disk_has_not_taken(tmp_path: Path) -> None:
    count, largest = 200, 4 << 20
    put(tmp_path, [f"{n}" * 50 for n in range(100, 100 + count)])
    # The largest size of a file, as on a nearly full disk: only a part of the last line fits.
    limited = (
        "import resource, runpy;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, {largest}));"
        f"runpy.run_path({str(SCRIPTS / 'consumer.py')!r}, run_name='__main__')"
    )
    environment = ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}
    with open(tmp_path / "out", "wb") as out:
        out.truncate(largest - 5_530)
        out.seek(0, os.SEEK_END)
        words = ["-c", limited]
        with Process(words, cwd=tmp_path, env=environment, stdout=out, stderr=DEVNULL) as process:
            try:
                while os.fstat(out.fileno()).st_size < largest and process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.01)
                process.send_signal(signal.SIGINT)
                process.wait(TIMEOUT_S)
            finally:
                process.kill()
    whole = (tmp_path / "out").read_bytes().lstrip(b"\0").count(b"\n")
    with shardq.connect(f"sqlite:///{tmp_path}/shardq.db") as db:
        left = db.queue("demo", create=False).depth(exact=True).total
    assert count - whole <= left < count


@pytest.mark.parametrize("name", ["producer.py", "consumer.py", "observer.py"])
def test_a_script_shows_a_user_what_is_public_and_nothing_else(name: str) -> None:
    imports = [
        line.split()[1]
        for line in (SCRIPTS / name).read_text().splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert set(imports) <= {"argparse", "time", "shardq", "shardq.errors"}


@pytest.mark.parametrize("name", ["producer.py", "consumer.py", "observer.py"])
def test_a_script_fits_on_a_page(name: str) -> None:
    assert len((SCRIPTS / name).read_text().splitlines()) <= 40


def test_the_demo_script_is_bash_that_parses(tmp_path: Path) -> None:
    subprocess.run(["bash", "-n", str(SCRIPTS / "demo")], check=True, cwd=tmp_path)
    assert os.access(SCRIPTS / "demo", os.X_OK)
