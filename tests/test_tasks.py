"""Tasks: what is put runs with its arguments, and ends as its options say. On both stores."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from apps import dead, states, worked, working
from starlette.background import BackgroundTask
from supervised import wait_for
from worlds import on_both_stores

import shardq
from shardq import App, Bury, Retry, Snooze, aio
from shardq.errors import BadArguments, BadSetting, KeyTaken, NoResult, UsageError
from shardq.tasks import Backoff, Context, Draft, Ended, Worker, current

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with App(url, queue=f"tasks-{uuid4().hex}", backoff="10ms") as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/jobs.db", backoff="10ms") as made:
        yield made


@dataclass
class User:
    name: str
    born: datetime


@on_both_stores
def test_a_job_runs_once_with_its_arguments_and_their_types(app: App) -> None:
    got: list[Any] = []

    @app.task
    def welcome(user: User, *others: int, lang: str = "en", **more: timedelta) -> None:
        got.append((user, others, lang, more))

    ada = User("ada", datetime(1815, 12, 10, tzinfo=UTC))
    welcome.put(ada)
    welcome.put(ada, 1, 2, lang="de", wait=timedelta(seconds=3))
    assert states(worked(app)) == ["done", "done"]
    assert sorted(got, key=str) == sorted(
        [(ada, (), "en", {}), (ada, (1, 2), "de", {"wait": timedelta(seconds=3)})], key=str
    )


def test_a_task_is_still_a_function(local: App) -> None:
    @local.task(attempts=3)
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert double(4) == 8
    assert double.__doc__ == "Twice as much."
    assert double.name.endswith("double")
    assert list(local.tasks) == [double.name]


@on_both_stores
def test_a_job_is_cancelled_and_moved_by_its_key(app: App) -> None:
    ran: list[str] = []

    @app.task
    def remind(user: str) -> None:
        ran.append(user)

    remind.using(delay="3d", key="remind-ada").put("ada")
    remind.using(delay="3d", key="remind-bob").put("bob")
    found = app.get("remind-ada")
    assert found.task == remind.name
    assert app.cancel("remind-ada")
    assert app.get("remind-ada") is None
    assert not app.cancel("remind-ada")
    assert app.move("remind-bob", delay="0s")
    worked(app)
    assert ran == ["bob"]


def test_a_key_is_filled_in_with_the_arguments(app: App) -> None:
    ran: list[int] = []

    @app.task(key="index-{doc}", on_conflict="reject", delay="3d")
    def index(doc: int, *, deep: bool = False) -> None:
        ran.append(doc)

    index.put(7)
    with pytest.raises(KeyTaken):
        index.put(7, deep=True)
    index.put_many([(8,), {"doc": 9}, index.using(key="{doc}").of(10)])
    for key in ("index-7", "index-8", "index-9", "{doc}"):
        assert app.cancel(key), key


def test_an_argument_may_be_named_as_one_of_puts_own(local: App) -> None:
    ran: list[Any] = []

    @local.task(key="{self}")
    def keep(self: int, args: int = 0, kwargs: int = 0) -> None:
        ran.append((self, args, kwargs))

    keep(self=1)
    keep.put(self=2, args=3)
    keep.using(key=None).put_many([keep.of(self=4, kwargs=5), {"self": 6}])
    asyncio.run(aio.task(keep).put(self=7))
    local.every("1h", keep.of(self=8))
    worked(local)
    assert sorted(ran) == [(1, 0, 0), (2, 3, 0), (4, 0, 5), (6, 0, 0), (7, 0, 0)]


@pytest.mark.parametrize("option", ["key", "group"])
@pytest.mark.parametrize("template", ["k-{user}", "{user!r}", "{user:>9}", "{who[name]}"])
def test_what_is_none_makes_no_key(local: App, option: str, template: str) -> None:
    def index(user: str | None = None, *, who: Any = None) -> None: ...

    options: Any = {option: template}
    task = local.task(**options)(index)
    for put in (
        lambda: task.put(who={"name": None}),
        lambda: task.put_many([{"who": {"name": None}}]),
        lambda: local.every("1h", task.of(who={"name": None})),
    ):
        with pytest.raises(UsageError, match=rf"{option} '.*' cannot be filled in .* is None\."):
            put()
    assert local.queue("default").depth().total == 0


def test_a_job_that_fails_is_tried_again_and_then_is_dead_with_its_error(app: App) -> None:
    attempts: list[int] = []

    @app.task(attempts=3, backoff=["20ms", "10ms"])
    def flaky(n: int) -> None:
        attempts.append(current().attempt)
        raise ValueError(f"no {n}")

    job = flaky.put(5)
    assert states(worked(app)) == ["retrying", "retrying", "failed"]
    assert attempts == [1, 2, 3]
    [message] = dead(app)
    assert message.id == job.id
    assert message.last_error == "out of attempts: ValueError: no 5"
    assert "raise ValueError" in message.headers["shardq-traceback"]
    assert message.headers["task"] == flaky.name


def test_errors_are_retried_or_buried_as_the_task_says(app: App) -> None:
    @app.task(attempts=2, retry_on=OSError, bury_on=[FileNotFoundError])
    def read(kind: str) -> None:
        raise {
            "os": OSError,
            "file": FileNotFoundError,
            "other": KeyError,
            "dir": IsADirectoryError,
        }[kind](kind)

    for kind in ("os", "file", "other", "dir"):
        read.using(id=kind).put(kind)
    read.using(id="call", bury_on=OSError, retry_on=None).put("os")
    ends = {(end.id, end.attempt): end.state for end in worked(app)}
    assert ends == {
        ("os", 1): "retrying",
        ("os", 2): "failed",
        ("file", 1): "failed",
        ("other", 1): "failed",
        ("dir", 1): "retrying",
        ("dir", 2): "failed",
        ("call", 1): "failed",
    }


def test_a_function_chooses_by_what_it_raises(app: App) -> None:
    @app.task(attempts=2)
    def choose(what: str) -> None:
        if current().attempt > 1 or (what == "snooze" and what in ran):
            return
        ran.append(what)
        raise {"retry": Retry("1ms"), "snooze": Snooze("1ms"), "bury": Bury("no use")}[what]

    ran: list[str] = []
    for what in ("retry", "snooze", "bury"):
        choose.using(id=what).put(what)
    ends = sorted((end.id, end.state, end.attempt) for end in worked(app))
    assert ends == [
        ("bury", "failed", 1),
        ("retry", "done", 2),
        ("retry", "retrying", 1),
        ("snooze", "done", 1),
        ("snooze", "snoozed", 1),
    ]
    assert [message.last_error for message in dead(app)] == ["no use"]


def test_a_back_off_may_be_a_function_of_attempt_and_error(local: App) -> None:
    told: list[tuple[int, str]] = []

    def backoff(attempt: int, error: BaseException) -> str:
        told.append((attempt, str(error)))
        if attempt == 2:
            raise RuntimeError("broken")
        return "1ms"

    @local.task(attempts=3, backoff=backoff)
    def fail() -> None:
        raise ValueError("no")

    fail.put()
    ends = worked(local)
    assert told == [(1, "no"), (2, "no")]
    assert states(ends) == ["retrying", "retrying", "failed"]
    assert ends[0].delay_ms == 1
    assert ends[1].delay_ms is not None
    assert 1_600 <= ends[1].delay_ms <= 2_000


def test_a_job_that_comes_too_late_is_dropped_and_counted(app: App) -> None:
    ran: list[str] = []

    @app.task(expires="1ms", keep="1h")
    def tell(what: str) -> None:
        ran.append(what)

    late = tell.using(due="2020-01-01T00:00:00Z").put("late")
    tell.using(due="2020-01-01T00:00:00Z", expires="10000d").put("old")
    assert sorted(states(worked(app))) == ["done", "expired"]
    assert ran == ["old"]
    assert late.state == "expired"
    assert re.fullmatch(r"expired: due (\d+d)?(\d+h)?(\d+m)?(\d+s)? ago, .* 1ms", late.error or "")
    queue = app.queue(app.queue_names[0])
    assert queue.totals().expired == 1
    assert queue.dead.depth().total == 0


def test_coroutines_run_at_once_in_one_thread(app: App) -> None:
    threads: set[int] = set()
    here: list[asyncio.Future[None]] = []

    @app.task
    async def meet(n: int) -> None:
        threads.add(threading.get_ident())
        here.append(asyncio.get_running_loop().create_future())
        if len(here) == 200:
            for one in here:
                one.set_result(None)
        await here[-1]
        assert current().id

    meet.put_many((n,) for n in range(200))
    assert states(worked(app, threads=2)) == ["done"] * 200
    assert len(threads) == 1


def test_what_is_over_its_time_limit_fails_and_goes_on_by_the_rules(app: App) -> None:
    release = threading.Event()
    over: list[str] = []

    @app.task(timeout="50ms", attempts=2)
    def block() -> None:
        if current().attempt == 1:
            release.wait(60)

    @app.task(timeout="50ms", attempts=1)
    async def sleep() -> None:
        await asyncio.Event().wait()

    def told(said: str) -> None:
        over.append(said)
        release.set()

    block.using(id="block").put()
    sleep.using(id="sleep").put()
    ends: list[Ended] = []
    Worker(app, report=ends.append, on_overrun=told).run(until_empty=True)
    assert sorted((end.id, end.attempt, end.state) for end in ends) == [
        ("block", 1, "retrying"),
        ("block", 2, "done"),
        ("sleep", 1, "failed"),
    ]
    [message] = dead(app)
    assert str(message.last_error).endswith("TimeLimit: took longer than 50ms")
    assert len(over) == 1
    assert "block" in over[0]


@on_both_stores
def test_results_progress_and_errors_are_kept_where_asked_for(app: App) -> None:
    going = threading.Event()

    @app.task(keep="1h", attempts=2)
    def double(n: int) -> timedelta:
        current().progress(0.5, "half way")
        if n == 2:
            raise ValueError("odd")
        assert going.wait(60)
        return timedelta(seconds=2 * n)

    good, bad, none = double.put(1), double.put(2), double.using(keep=None).put(3)
    worker = threading.Thread(target=worked, args=(app,))
    worker.start()
    wait_for(lambda: good.progress is not None, "progress")
    progress = good.progress
    assert (progress.fraction, progress.note) == (0.5, "half way")
    assert good.state == "running"
    going.set()
    assert good.result("1m") == timedelta(seconds=2)
    assert good.state == "done"
    worker.join()
    assert bad.state == "failed"
    assert bad.error == "out of attempts: ValueError: odd"
    assert "raise ValueError" in (bad.traceback or "")
    assert bad.attempt == 2
    assert app.job(good.id, task=double.name).result("0s") == timedelta(seconds=2)
    with pytest.raises(NoResult, match="keeps no result"):
        none.result("0s")


def test_what_cannot_be_json_buries_a_job_whose_result_is_kept(local: App) -> None:
    @local.task(keep="1h")
    def make() -> object:
        return threading.Lock()

    job = make.put()
    make.using(keep=None).put()
    assert sorted(states(worked(local))) == ["done", "failed"]
    assert job.state == "failed"


def test_a_batch_is_run_together(app: App) -> None:
    batches: list[list[int]] = []

    unlucky = [13]

    @app.task(batch=10, attempts=2, keep="1h")
    def add(numbers: list[int]) -> int:
        batches.append(numbers)
        if unlucky and 13 in numbers:
            unlucky.clear()
            raise ValueError("unlucky")
        return sum(numbers)

    ids = add.put_many(range(35), ids=True)
    ends = worked(app, threads=4)
    assert max(len(batch) for batch in batches) == 10
    assert sorted(end.state for end in ends).count("done") == 35
    assert states(ends).count("retrying") in range(1, 11)
    assert {n for batch in batches for n in batch} == set(range(35))
    assert [app.job(one, task=add.name).result("0s") for one in ids] == [None] * 35


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_may_return_an_outcome_for_each_of_its_jobs(local: App, is_async: bool) -> None:
    ran: list[str] = []

    def index(texts: list[str]) -> Any:
        ran.extend(texts)
        outcomes = {
            "busy": Retry("10ms", reason="busy"),
            "later": Snooze("10ms"),
            "wrong": Bury("wrong"),
            "broken": ValueError("broken"),
        }
        # asyncio.gather(.., return_exceptions=True) returns such a list.
        return [outcomes.get(one) if ran.count(one) < 2 else 7 for one in texts]

    async def awaited(texts: list[str]) -> Any:
        return index(texts)

    task = local.task(batch=100, attempts=3, keep="1h", name="index")(
        awaited if is_async else index
    )
    texts = ["good", "busy", "later", "wrong", "broken", "fine"]
    ids = task.put_many(texts, ids=True)
    ends = worked(local, threads=8)
    ended = {one.id: (one.state, one.attempt) for one in ends}
    assert [ended[one] for one in ids] == [
        ("done", 1), ("done", 2), ("done", 1), ("failed", 1), ("done", 2), ("done", 1)
    ]  # fmt: skip
    assert sorted(ran) == sorted([*texts, "busy", "later", "broken"])
    assert [one.headers["shardq-reason"] for one in dead(local)] == ["wrong"]


def test_a_batch_that_returns_outcomes_of_other_jobs_is_buried(local: App) -> None:
    @local.task(batch=2)
    def index(texts: list[str]) -> Any:
        return [ValueError("whose?")] * 3

    index.put_many(["a", "b"])
    worked(local)
    reasons = [one.headers["shardq-reason"] for one in dead(local)]
    assert len(reasons) == 2
    for reason in reasons:
        assert re.search(r"index returned 3 outcomes for a batch of [12]$", reason)


def test_middleware_is_around_each_put_and_run(app: App) -> None:
    seen: list[str] = []

    class Trace:
        @contextmanager
        def put(self, draft: Draft) -> Iterator[None]:
            draft.headers["trace"] = "t-1"
            yield
            seen.append(f"put {draft.task.rpartition('.')[2]} {draft.args} {draft.kwargs}")

        @contextmanager
        def run(self, context: Context) -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                seen.append(f"failed {context.headers} {error}")
                raise
            seen.append(f"ran {context.headers}")

    queue = f"traced-{uuid4().hex}"
    with App(app.connection, queue=queue, middleware=[Trace()], attempts=1) as traced:

        @traced.task
        def fine(n: int) -> None: ...

        @traced.task
        async def fails(n: int) -> None:
            raise ValueError(f"no {n}")

        fine.put(1)
        fails.put_many([fails.of(n=2)])
        worked(traced)
    assert sorted(seen) == [
        "failed {'trace': 't-1'} no 2",
        "put fails () {'n': 2}",
        "put fine (1,) {}",
        "ran {'trace': 't-1'}",
    ]


def test_a_job_of_an_unknown_task_waits_for_a_worker_that_knows_it(app: App) -> None:
    ran: list[int] = []

    @app.task
    def known(n: int) -> None:
        ran.append(n)

    queue = app.queue(app.queue_names[0])
    queue.put(b'{"n": 7}', headers={"task": "gone.away"}, id="lost")
    known.put(1)
    ends: list[Ended] = []
    with working(app, report=ends.append):
        wait_for(lambda: len(ends) >= 2, "both")
    assert {(end.id == "lost", end.state) for end in ends} == {(True, "unknown"), (False, "done")}
    state = queue.state_of("lost")
    assert "no task gone.away" in str(state)

    @app.task(name="new.name", aliases=["gone.away"])
    def renamed(n: int) -> None:
        ran.append(n)

    worked(app)
    assert sorted(ran) == [1, 7]


def test_a_job_of_an_unknown_task_leaves_the_lane_whose_worker_does_not_know_it(app: App) -> None:
    @app.task
    def known() -> None: ...

    queue = app.queue(app.queue_names[0])
    for group in (None, "g"):
        queue.put(b"{}", headers={"task": "new"}, id=f"of-{group}", group=group)
    before = {one.id: one._row.shard.lane for one in queue.peek()}
    ends: list[Ended] = []
    with working(app, report=ends.append):
        wait_for(lambda: len({end.id for end in ends}) == 2, "both")
    after = {one.id: one._row.shard.lane for one in queue.peek()}
    # The lane of the first follows from its group, so it stays and waits for another reader.
    assert after["of-g"] == before["of-g"]
    assert after["of-None"] != before["of-None"]


def test_a_wrong_argument_is_refused_at_the_put(local: App) -> None:
    @local.task
    def add(n: int, *, to: int = 0) -> None: ...

    for put in (
        lambda: add.put("1"),  # type: ignore[arg-type]
        lambda: add.put(to=1),  # type: ignore[call-arg]
        lambda: add.put(1, too=2),  # type: ignore[call-arg]
        lambda: add.put_many([("1",)]),
        lambda: add.put_many([7]),  # type: ignore[list-item]
    ):
        with pytest.raises(BadArguments):
            put()
    assert local.queue("default").depth().total == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"atempts": 3}, "did you mean 'attempts'"),
        ({"attempts": 0}, "attempts must be 1 to 10,000"),
        ({"attempts": 1, "backoff": "1s"}, "backoff has no use with attempts=1"),
        ({"attempts": 1, "retry_on": OSError}, "retry_on has no use with attempts=1"),
        ({"retry_on": OSError, "bury_on": OSError}, "both in retry_on and in bury_on"),
        ({"retry_on": []}, "retry_on names no error"),
        ({"bury_on": ["OSError"]}, "must name classes of errors"),
        ({"bury_on": "OSError"}, "must name classes of errors, not 'OSError'"),
        ({"retry_on": OSError()}, r"must name classes of errors, not OSError\(\)"),
        ({"aliases": "mail.send"}, r"aliases must be a list of names, as \['mail.send'\], not"),
        ({"on_conflict": "replace"}, "has no use without a key"),
        ({"key": "k", "on_conflict": "never"}, "on_conflict must be one of"),
        ({"key": "k", "max_wait": "1s"}, "max_wait has no use but with"),
        ({"key": "{nobody}"}, "names 'nobody', which is no argument"),
        ({"key": "{n"}, "cannot be filled in"),
        ({"timeout": "0s"}, "timeout must be longer than 0"),
        ({"expires": "soon"}, "expires"),
        ({"backoff": []}, "backoff must have 1 to 1,000 durations"),
        ({"headers": {"task": "x"}}, "is the app's own"),
        ({"batch": 0}, "batch must be 1 to 1,000"),
        ({"due": "2030-01-01T00:00:00Z"}, "unknown option 'due'"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_the_declaration(
    local: App, options: dict[str, Any], said: str
) -> None:
    def index(n: list[int]) -> None: ...

    with pytest.raises(UsageError, match=said):
        local.task(**options)(index)
    assert not local.tasks


def test_a_backoff_grows_to_its_longest_delay() -> None:
    backoff = Backoff("1s", factor=3, longest="1m", jitter=0.5)
    for attempt, least, most in ((1, 500, 1_000), (2, 1_500, 3_000), (9, 30_000, 60_000)):
        assert least <= backoff.delay_ms(attempt) <= most
    assert backoff.delay_ms(10_000) <= 60_000
    with pytest.raises(BadSetting):
        Backoff("2h", longest="1h")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("delay", "it is task.put(..)"),
        ("apply_async", "it is task.using(delay=.., queue=..).put(..)"),
        ("s", "it is task.of(..)"),
        ("retry", "let the function raise Retry('60s')"),
    ],
)
def test_a_method_of_another_queue_s_tasks_is_told_what_it_is_here(
    local: App, name: str, instead: str
) -> None:
    task: Any = local.task(name="greet")(print)
    for one in task, task.using(delay="1s"), aio.task(task):
        assert not hasattr(one, name)
        with pytest.raises(AttributeError) as caught:
            getattr(one, name)
        assert str(caught.value) == f"a task has no attribute {name!r}; {instead}"
    with pytest.raises(AttributeError, match=r"^a task has no attribute 'puts'$"):
        _ = task.puts


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("countdown", "say delay=, '60s' or a timedelta"),
        ("eta", "say due=, an aware datetime"),
        ("max_retries", "say attempts=, which counts the first run too"),
        ("bind", r"leave it out: current\(\) is the running job"),
    ],
)
def test_an_option_of_another_queue_is_told_what_it_is_here(
    local: App, name: str, instead: str
) -> None:
    given: Any = {name: 3}

    def greet(user: str) -> None: ...

    for give in (
        lambda: local.task(**given)(greet),
        lambda: local.task(name="b")(greet).using(**given),
        lambda: App("sqlite://", **given),
        lambda: local.task(name="c")(greet).put("ada", **given),
        lambda: local.every("1h", local.task(name="d")(greet).of("ada", **given)),
    ):
        with pytest.raises(UsageError, match=instead):
            give()


def test_two_tasks_of_one_name_are_refused(local: App) -> None:
    @local.task(name="mail.send")
    def send() -> None: ...

    with pytest.raises(UsageError, match=r"two tasks are named 'mail.send': .*test_tasks.py"):

        @local.task(aliases=["mail.send"])
        def other() -> None: ...

    assert list(local.tasks) == ["mail.send"]


REDONE = """
import importlib
from pathlib import Path
from shardq import App

TEXT = "from __main__ import app\\n@app.task({})\\ndef send(): ...\\n"
app = App("sqlite://")
Path("twice.py").write_text(TEXT.format("") * 2)
Path("jobs.py").write_text(TEXT.format("aliases=['old']"))
import jobs
Path("jobs.py").write_text("# moved" + TEXT.format("attempts=7"))
importlib.reload(jobs)
for number in range(2):  # the cells of a notebook
    @app.task
    def greet(): ...
print(*app.tasks, app._home.find("old"), app.tasks["jobs.send"] is jobs.send)
try:
    import twice
except Exception as error:
    print(error)
"""


def _output(directory: Path, *arguments: str) -> str:
    """What a Python of its own prints that is started in a directory."""
    done = subprocess.run(
        [sys.executable, "-B", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path(shardq.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_a_task_takes_the_place_of_what_its_module_or_cell_declared_before(tmp_path: Path) -> None:
    tasks, twice = _output(tmp_path, "-c", REDONE).splitlines()
    assert tasks == "jobs.send greet None True"
    assert twice.startswith("two tasks are named 'twice.send': ")


PROGRAM = """
from shardq import App
app = App("sqlite:///jobs.db")
@app.task
def send(): ...
if __name__ in ("__main__", "__mp_main__"):
    print(send.name)
    send.put()
"""
STARTS = "from jobs import send; print(send.name); send.put()"
SPAWNS = (
    PROGRAM
    + """
if __name__ == "__main__":
    import multiprocessing
    child = multiprocessing.get_context("spawn").Process(target=send)
    child.start()
    child.join()
"""
)


@pytest.mark.parametrize(
    ("start", "named"),
    [
        ("shop/jobs.py", "shop.jobs.send"),
        ("shop/start.py", "shop.jobs.send"),
        ("jobs.py", "jobs.send"),
        ("parts/spawns.py", "spawns.send\nspawns.send"),
    ],
)
def test_a_task_of_a_program_has_the_name_by_which_a_worker_imports_it(
    tmp_path: Path, start: str, named: str
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "shop").mkdir()
    for path, text in {
        "shop/jobs.py": PROGRAM,
        "shop/start.py": STARTS,
        "jobs.py": PROGRAM,
        "parts/spawns.py": SPAWNS,
        # The one beside a program that is started where it is makes no package of it.
        "__init__.py": "",
        "shop/__init__.py": "",
    }.items():
        (tmp_path / path).write_text(text)
    assert _output(tmp_path, start) == f"{named}\n"


@pytest.mark.parametrize("start", ["parts/jobs.py", "parts/start.py"])
def test_a_worker_knows_a_task_by_the_name_of_a_program_in_a_directory_that_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # Another test may have imported a module of one of these names.
    for name in ("parts", "parts.jobs", "others", "others.jobs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for path, text in {
        "parts/jobs.py": PROGRAM,
        "parts/start.py": STARTS,
        "others/jobs.py": "from parts.jobs import app\n@app.task\ndef send(): ...\n",
    }.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    assert _output(tmp_path, start) == "jobs.send\n"
    with importlib.import_module("parts.jobs").app as app:
        assert [(one.task, one.state) for one in worked(app)] == [("parts.jobs.send", "done")]
        importlib.import_module("others.jobs")
        # If two tasks may be meant, neither is taken.
        with pytest.raises(UsageError, match=r"there is no task 'jobs\.send'"):
            app.job("x", task="jobs.send")
        with pytest.raises(UsageError, match=r"did you mean 'others.jobs.send'\?"):
            app.job("x", task="other.jobs.send")


@pytest.mark.parametrize("wrong", [User, 7, lambda: (yield)])
def test_what_is_no_function_that_does_its_work_is_no_task(local: App, wrong: Any) -> None:
    with pytest.raises(UsageError):
        local.task(wrong)


def test_a_function_that_is_chosen_by_the_type_of_its_argument_is_no_task(local: App) -> None:
    @functools.singledispatch
    def greet(name: str) -> None: ...

    with pytest.raises(UsageError, match="declare a function that calls it"):
        local.task(greet)

    @local.task
    def call(name: str) -> None:
        greet(name)

    call.put("ada")
    assert states(worked(local)) == ["done"]


def test_a_method_is_no_task_unless_it_has_its_object(local: App) -> None:
    class Shop:
        def send(self, n: int) -> None: ...

        @classmethod
        def count(cls, n: int) -> None: ...

        @staticmethod
        def greet(n: int) -> None: ...

    for wrong in Shop.send, vars(Shop)["count"], vars(Shop)["count"].__func__:
        with pytest.raises(UsageError, match="is a method, and a worker has no object to call it"):
            local.task(wrong)
    for task in local.task(Shop().send), local.task(Shop.count), local.task(vars(Shop)["greet"]):
        task.put(1)
    assert states(worked(local)) == ["done"] * 3


def test_an_option_without_its_name_is_told_how_it_is_given(local: App) -> None:
    declare: Any = local.task
    with pytest.raises(UsageError, match="takes its options by name, as queue='mail' or name="):
        declare("mail")


def test_a_job_may_have_more_attempts_than_its_queue_allows_only_if_declared(local: App) -> None:
    local.connection.queue("small", attempts=3)

    @local.task(queue="small", attempts=7)
    def seven() -> None: ...

    seven.put()
    assert local.queue("small").settings.attempts == 7
    with pytest.raises(BadSetting, match="attempts=8 is more than the 7"):
        seven.using(attempts=8).put()


@pytest.mark.parametrize("store", [None, "environment", "sqlite:///jobs.db?busy=1s"])
def test_an_app_keeps_its_file_where_it_was_made_wherever_the_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str | None
) -> None:
    here, there = tmp_path / "50% #1", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.delenv("SHARDQ_STORE", raising=False)
    if store == "environment":
        monkeypatch.setenv("SHARDQ_STORE", "sqlite:///jobs.db")
        store = None
    name = "shardq.db" if "SHARDQ_STORE" not in os.environ and store is None else "jobs.db"
    monkeypatch.chdir(here)
    with App(store) as app:
        task = app.task(name="greet")(lambda: None)
        monkeypatch.chdir(there)
        task.put()
        assert (here / name).exists()
    assert os.listdir(there) == []


def test_frameworks_see_which_tasks_are_async(tmp_path: Path) -> None:
    ran: list[Any] = []
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task
        async def greet(user: str) -> None:
            ran.append(user)

        @app.task(batch=2)
        async def count(users: list[str]) -> None:
            ran.append(len(users))

        @app.task
        def wave(user: str) -> None:
            ran.append(f"wave {user}")

        for task, is_async in ((greet, True), (count, True), (wave, False)):
            assert inspect.iscoroutinefunction(task) == is_async
            assert inspect.iscoroutinefunction(partial(task)) == is_async
        # Starlette runs what it takes for sync in a thread, and forgets the coroutine.
        asyncio.run(BackgroundTask(greet, "ada")())
        asyncio.run(BackgroundTask(count, ["ada", "bob"])())
        asyncio.run(BackgroundTask(wave, "ada")())
    assert ran == ["ada", 2, "wave ada"]
