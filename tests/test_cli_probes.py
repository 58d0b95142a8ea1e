"""`--metrics` and `--health` of the commands: what answers, and for how many processes."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import Server
from shell import Shell, shell
from working import Works, app_shell, write_app

from shardq import App
from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_S = 60

COUNTED = """
from shardq import App
app = App(attempts=1)
@app.task(queue="mail", name="fine")
def fine(n: int) -> None:
    pass
@app.task(queue="mail", name="bad")
async def bad(n: int) -> None:
    raise ValueError(n)
"""


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what is expected, for up to a minute."""
    clock = SystemClock()
    end_us = clock.boot_us() + TIMEOUT_S * 1_000_000
    while not is_so():
        assert clock.boot_us() < end_us
        clock.sleep(0.05)


def got(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scraped(url: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, values of labels) -> the value, of a scrape."""
    status, text = got(f"{url}/metrics")
    assert status == 200
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(scrapes: list[dict[tuple[str, tuple[str, ...]], float]], name: str) -> float:
    return sum(value for scrape in scrapes for (found, _), value in scrape.items() if found == name)


@contextmanager
def working(shell: Shell, *arguments: str) -> Iterator[tuple[Works, str]]:
    """A `shardq work` that is ready, and the url of its page."""
    works = Works(shell, *arguments)
    try:
        url = works.expect(r"answers /\S+.* at (http://\S+)\.")
        works.expect("runs \\d+ tasks? of")
        yield works, url
    finally:
        works.process.kill()
        works.ended()


@contextmanager
def taken() -> Iterator[int]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


@pytest.mark.parametrize(
    "command",
    [
        ("work", "app", "--metrics"),
        ("work", "app", "--processes", "2", "--metrics"),
        ("work", "app", "--health"),
        ("consume", "mail", "--metrics"),
        ("serve", "--metrics"),
        ("observe", "--metrics"),
    ],
    ids=" ".join,
)
def test_a_port_in_use_is_one_clear_error_and_nothing_is_done(
    app_shell: Shell, command: tuple[str, ...]
) -> None:
    with taken() as port:
        said = app_shell.fails(2, *command, str(port))
    assert f"{command[-1]}: port {port} is taken" in said
    assert not (app_shell.directory / "jobs.db").exists()


def test_metrics_of_three_workers_of_two_processes_one_killed_add_up_to_the_ledger(
    app_shell: Shell,
) -> None:
    write_app(app_shell.directory, COUNTED)
    arguments = ("app", "--processes", "2", "--metrics", "0", "--log", "none")
    app = App(app_shell.url, attempts=1)
    # Before workers have its settings: what they end then is in the history.
    mail = app.connection.queue("mail", history="1d")

    @app.task(queue="mail", name="fine")
    def fine(n: int) -> None:
        raise AssertionError(n)

    @app.task(queue="mail", name="bad")
    def bad(n: int) -> None:
        raise AssertionError(n)

    with (
        closing(app),
        working(app_shell, *arguments) as (first, one),
        working(app_shell, *arguments) as (_, two),
        working(app_shell, *arguments) as (_, three),
    ):
        urls = [one, two, three]

        def run(count: int) -> None:
            for number in range(30):
                fine.put(number)
            for number in range(10):
                bad.put(number)
            until(
                lambda: total([scraped(url) for url in urls], "shardq_run_seconds_count") >= count
            )
            # Each process stores its totals every 2 s; one that is killed takes what it has not.
            until(lambda: mail.totals().delivered == count)

        run(40)
        os.kill(pid_of(first), signal.SIGKILL)
        first.expect("another takes its place")
        run(80)
        scrapes = [scraped(url) for url in urls]
        ledger = mail.audit(since="1h").total
    assert (ledger.put, ledger.acked, ledger.dead) == (80, 60, 20)
    name, labels = (
        "shardq_run_seconds_count",
        [("acked", "mail", "fine"), ("buried", "mail", "bad")],
    )
    assert [sum(one.get((name, of), 0) for one in scrapes) for of in labels] == [60, 20]
    assert total(scrapes, "shardq_lateness_seconds_count") == 80
    for scrape in scrapes:
        assert scrape["shardq_put_total", ("mail",)] == ledger.put
        assert scrape["shardq_acked_total", ("mail",)] == ledger.acked
        assert scrape["shardq_buried_total", ("mail",)] == ledger.dead
        assert scrape["shardq_messages", ("mail", "dead")] <= ledger.dead


def pid_of(works: Works) -> int:
    """One of its processes."""
    found = re.search(r"process (\d+) runs", " ".join(works.err))
    assert found is not None
    return int(found[1])


def test_a_process_that_stands_still_makes_its_supervisor_not_live(
    app_shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with working(app_shell, "app", "--processes", "1", "--health", "0") as (works, url):
        until(lambda: got(f"{url}/readyz") == (200, "ok\n"))
        os.kill(pid_of(works), signal.SIGSTOP)
        assert got(f"{url}/livez") == (503, "a process does not answer\n")
        os.kill(pid_of(works), signal.SIGCONT)
        until(lambda: got(f"{url}/livez") == (200, "ok\n"))


def test_a_worker_of_one_process_answers_metrics_and_health_at_one_port(app_shell: Shell) -> None:
    with taken() as port:
        pass
    place = str(port)
    with working(app_shell, "app", "--metrics", place, "--health", place) as (_, url):
        assert url.endswith(f":{port}")
        assert got(f"{url}/livez") == (200, "ok\n")
        assert got(f"{url}/readyz") == (200, "ok\n")
        until(lambda: scraped(url)["shardq_workers", ("mail",)] == 1)


def test_a_file_is_touched_while_a_worker_is_live(app_shell: Shell) -> None:
    file = app_shell.directory / "alive"
    works = Works(app_shell, "app", "--health", "alive")
    works.expect("runs 5 tasks")
    until(file.exists)
    file.unlink()
    until(file.exists)
    assert works.stop().code == 0
    assert not file.exists()


def test_a_consumer_counts_what_it_has_consumed(shell: Shell) -> None:
    shell.ok("produce", "mail", "--count", "5", "--rate", "1e6")
    with consuming(shell, "mail", "--metrics", "0") as url:
        until(lambda: total([scraped(url)], "shardq_run_seconds_count") == 5)
        until(lambda: scraped(url)["shardq_acked_total", ("mail",)] == 5)
        assert got(f"{url}/livez") == (200, "ok\n")


def test_observe_answers_for_a_store_of_which_nothing_works(shell: Shell) -> None:
    shell.ok("produce", "mail", "--count", "5", "--rate", "1e6")
    shell.ok("produce", "post", "--count", "1", "--rate", "1e6")
    with consuming(shell, "mail", "--metrics", "0", command="observe") as url:
        scrape = scraped(url)
        assert scrape["shardq_messages", ("mail", "ready")] == 5
        assert ("shardq_messages", ("post", "ready")) not in scrape
        assert got(f"{url}/readyz") == (200, "ok\n")


def test_observe_prints_nothing_beside_metrics(shell: Shell) -> None:
    assert "--once and --json" in shell.fails(2, "observe", "--metrics", "0", "--json")


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["one", "two"])
def test_a_server_counts_its_requests_and_batches(shell: Shell, processes: tuple[str, ...]) -> None:
    words = ("serve", "--port", "0", "--insecure", *processes, "--metrics", "0")
    with Server(shell.fork(*words), count=2 if processes else 1) as server:
        # A supervisor says it before its processes serve, and one process after that.
        said = [one for one in server.lines if "answers /metrics" in one]
        line = said[0] if said else server.expect("answers /metrics").string
        url = line.rpartition(" ")[2].removesuffix(".")
        assert server.ask("PUT", "/v1/queues/mail", b"{}", **JSON).status < 300
        for _ in range(3):
            put = server.ask("POST", "/v1/queues/mail/messages", b'{"body": "x"}', **JSON)
            assert put.status < 300, put
        until(lambda: ("shardq_batch_size_sum", ("put",)) in scraped(url))
        until(lambda: scraped(url)["shardq_batch_size_sum", ("put",)] == 3)
        scrape = scraped(url)
        of_puts = ("POST /v1/queues/{queue}/messages", "http", str(put.status))
        assert scrape["shardq_http_seconds_count", of_puts] == 3
        # Each process stores its totals every 2 s.
        until(lambda: scraped(url)["shardq_put_total", ("mail",)] == 3)
        assert scrape["shardq_polls_open", ()] == 0
        assert got(f"{url}/livez") == (200, "ok\n")
        assert got(f"{url}/readyz") == (200, "ok\n")
        assert server.stop() == 0


JSON = {"content-type": "application/json"}


@contextmanager
def consuming(shell: Shell, *arguments: str, command: str = "consume") -> Iterator[str]:
    """A command that runs, by the url of its page."""
    process = shell.fork(command, *arguments)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(rb"answers /\S+.* at (http://\S+)\.", line):
                yield found[1].decode()
                return
        raise AssertionError("it has ended")
    finally:
        process.kill()
        with process:
            pass
