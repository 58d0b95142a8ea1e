"""The examples of tasks, `docs/examples/`: each does what its page says. Nothing waits for days."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from fastapi.testclient import TestClient
from supervised import wait_for

from shardq import Answer
from shardq.tasks import JobState, Worker
from shardq.testing import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from shardq import App

    Import: TypeAlias = Callable[[str], Any]

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Imports an example anew, on a store of its own."""
    monkeypatch.setenv("SHARDQ_STORE", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.syspath_prepend(DOCS / "examples")
    made: list[Any] = []

    def load(name: str) -> Any:
        monkeypatch.delitem(sys.modules, name, raising=False)
        made.append(importlib.import_module(name))
        return made[-1]

    yield load
    for one in made:
        one.app.close()
        sys.modules.pop(one.__name__, None)


def work(app: App) -> None:
    Worker(app, threads=1).run(until_empty=True)


def from_now(app: App, key: str, queue: str) -> timedelta:
    """How far the job of a key is due."""
    found = app.queue(queue).get(key)
    assert found is not None
    return found.due - datetime.now(UTC)


def test_the_page_shows_each_example_as_it_is() -> None:
    shown = dict(
        re.findall(
            r'^```python title="(\w+\.py)"\n(.*?)^```$',
            (DOCS / "examples.md").read_text(),
            re.MULTILINE | re.DOTALL,
        )
    )
    for path in EXAMPLES:
        assert shown[path.name] == path.read_text(), path.name


def test_who_pays_is_not_reminded_and_others_are_once(
    example: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    remind = example("remind")
    for cart in (7, 8, 9):
        remind.left(cart, f"{cart}@example.org")
    remind.left(8, "8@example.net")
    remind.paid(7)
    remind.asked_for_later(9)
    assert remind.app.get("cart-7") is None
    assert timedelta(days=2.9) < from_now(remind.app, "cart-8", "reminders") < timedelta(days=3.1)
    assert timedelta(days=6.9) < from_now(remind.app, "cart-9", "reminders") < timedelta(days=7.1)
    for cart in (8, 9):
        assert remind.app.move(f"cart-{cart}", delay="0s") is Answer.DONE
    work(remind.app)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "to 8@example.net: your cart 8 is waiting",
        "to 9@example.org: your cart 9 is waiting",
    ]


def test_parts_that_run_twice_or_die_count_once_and_the_report_runs_once(
    example: Import,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    collect = example("collect")
    collect.set_up()
    for _ in range(2):  # as where the first call was interrupted at its end
        collect.start("census", 20)
    work(collect.app)
    assert capsys.readouterr().out == "census: 19 pages of 2,077 bytes, 1 failed\n"
    # A census whose process dies between its transaction and its end.
    collect.start("second", 1)
    with monkeypatch.context() as dying:
        dying.setattr(type(collect.app), "move", lambda *_given, **_named: None)
        collect.count_off("second", 0, 100)
    work(collect.app)
    assert capsys.readouterr().out == "second: 1 pages of 100 bytes, 0 failed\n"


@pytest.mark.nightly
def test_ten_thousand_parts_are_collected_by_processes_of_which_one_is_killed(
    example: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    collect = example("collect")
    collect.set_up()
    collect.start("census", 10_000)

    def few_are_missing() -> bool:
        with collect.database() as db:
            return bool(db.execute("SELECT missing < 9000 FROM batches").fetchone()[0])

    words = [
        sys.executable,
        "-m",
        "shardq",
        "work",
        "collect:app",
        "--until-empty",
        "--log",
        "none",
    ]
    environment = os.environ | {"PYTHONPATH": f"{DOCS.parent}:{DOCS / 'examples'}"}
    killed, other = (
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) for _ in range(2)
    )
    wait_for(few_are_missing, "a thousand parts have ended")
    killed.kill()
    reports = b"".join(process.communicate()[0] for process in (killed, other))
    assert reports == b"census: 9,999 pages of 50,994,887 bytes, 1 failed\n"


def test_changes_are_indexed_once_and_one_while_it_is_indexed_once_more(
    example: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    reindex = example("reindex")
    ran: list[str] = []

    def run(doc: int) -> None:
        ran.append("begun")
        if len(ran) == 1:
            for _ in range(3):
                reindex.index.put(doc)
            # It waits for this run, however soon it is due.
            assert reindex.app.move(f"index-{doc}", delay="0s") is Answer.DONE
        ran.append("ended")

    monkeypatch.setattr(reindex.index._task, "function", run)
    for _ in range(20):
        reindex.index.put(7)
    reindex.index.put(8)
    assert reindex.app.queue("index").depth(exact=True).total == 2
    assert from_now(reindex.app, "index-7", "index") > timedelta(seconds=20)
    assert reindex.app.cancel("index-8")
    reindex.app.move("index-7", delay="0s")
    Worker(reindex.app, threads=4).run(until_empty=True)
    assert ran == ["begun", "ended", "begun", "ended"]


def test_a_report_is_made_each_night_and_who_approves_it_is_not_reminded(example: Import) -> None:
    report = example("report")
    with Sandbox(report.app, start="2027-10-29T12:00+02:00") as sandbox:
        sandbox.travel(until="2027-10-30T08:00+02:00")
        report.approve(date(2027, 10, 29))
        sandbox.travel(until="2027-11-01T12:00+01:00")
        ran = [(run.at.isoformat(timespec="minutes"), run.put.arguments) for run in sandbox.runs()]
    assert ran == [
        ("2027-10-30T00:30+00:00", {}),
        ("2027-10-31T00:30+00:00", {}),
        ("2027-10-31T07:00+00:00", {"day": date(2027, 10, 30)}),
        ("2027-11-01T01:30+00:00", {}),
        ("2027-11-01T08:00+00:00", {"day": date(2027, 10, 31)}),
    ]


def test_a_report_after_nights_without_a_worker_is_of_all_days(example: Import) -> None:
    report = example("report")
    with Sandbox(report.app, start="2027-01-01T12:00Z") as sandbox:
        sandbox.travel("1 day")
        sandbox.clock.advance(timedelta(days=3).total_seconds())
        sandbox.travel("1h")
        assert len(sandbox.runs(report.report)) == 2
        days = [put.arguments["day"] for put in sandbox.puts(report.remind)]
    assert days == [date(2027, 1, day) for day in (1, 2, 3, 4)]


def test_customers_are_synced_as_often_as_they_choose(example: Import) -> None:
    sync = example("sync")
    with Sandbox(sync.app, start="2027-01-01T00:00Z") as sandbox:
        sync.choose("ada", "6h")
        sync.choose("ada", "6h")
        sync.choose("bob", "1d")
        sandbox.travel("1 day")
        assert len(sandbox.runs(sync.sync, "ada")) == 4
        assert len(sandbox.runs(sync.sync, "bob")) == 1
        sync.choose("bob", "12h")
        sync.sync_now("ada")
        sync.leave("ada")
        sandbox.travel("1 day")
        assert len(sandbox.runs(sync.sync, "ada")) == 5
        assert len(sandbox.runs(sync.sync, "bob")) == 3


class Api(BaseHTTPRequestHandler):
    answers: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        code = self.answers.pop(0)
        self.send_response(code)
        if code == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        if code == 200:
            self.wfile.write(b'{"USD": 1.17}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Api)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.mark.parametrize(
    ("answers", "state", "attempts"),
    [
        ([503, 503, 429, 200], JobState.DONE, 4),
        ([404], JobState.FAILED, 1),
        ([500] * 8, JobState.FAILED, 8),
    ],
)
def test_an_api_is_asked_until_it_answers_and_not_where_that_is_of_no_use(
    example: Import, api: str, answers: list[int], state: JobState, attempts: int
) -> None:
    rates = example("rates")
    Api.answers[:] = answers
    job = rates.fetch.using(backoff="1ms").put(f"{api}/rates")
    work(rates.app)
    assert (job.state, job.attempt, Api.answers) == (state, attempts, [])
    if state is JobState.DONE:
        assert job.result() == {"USD": 1.17}


def test_a_fan_out_is_spread_evenly(example: Import) -> None:
    newsletter = example("newsletter")
    begun = datetime.now(UTC)
    assert newsletter.publish(7, [str(n) for n in range(120)]) == 120
    waiting = newsletter.app.queue("newsletter").peek(limit=1_000)
    dues = sorted(one.due - begun for one in waiting)
    assert len(dues) == 120
    assert timedelta(0) <= dues[0] < timedelta(minutes=1)
    assert {round((later - due).total_seconds()) for due, later in pairwise(dues)} == {30}


def test_a_fan_out_reaches_each_reader_once(
    example: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    newsletter = example("newsletter")
    got: list[str] = []

    async def send(issue: int, reader: str) -> None:
        got.append(reader)

    monkeypatch.setattr(newsletter.send._task, "function", send)
    readers = [f"reader-{n}" for n in range(200)]
    newsletter.publish(7, readers, over=timedelta(milliseconds=200))
    work(newsletter.app)
    assert sorted(got) == sorted(readers)


def test_a_web_server_answers_at_once_and_shows_what_the_worker_made(example: Import) -> None:
    web = example("web")
    with TestClient(web.api) as customer:
        answer = customer.post("/invoices", json={"customer": "ada", "cents": [450, 1_250]})
        assert answer.status_code == 202
        place = f"/invoices/{answer.json()['id']}"
        waiting = {"state": "waiting", "progress": None, "error": None}
        assert customer.get(place).json() == waiting
        work(web.app)
        done = {"state": "done", "invoice": {"customer": "ada", "total": 1_700}}
        assert customer.get(place).json() == done
        assert customer.get("/invoices/7").status_code == 404
        wrong = customer.post("/invoices", json={"customer": "ada", "cents": ["much"]})
        assert wrong.status_code == 422
