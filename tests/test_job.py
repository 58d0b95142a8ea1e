"""Jobs: how one stands, what it came to, and that nobody waits for ever for one that is gone."""

from __future__ import annotations

import atexit
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from worlds import World, on_each_store

from shardq.clock import BootTime
from shardq.connection import Connection
from shardq.errors import (
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobTimeout,
    NoResult,
    UsageError,
)
from shardq.lifecycle.keyed import Answer
from shardq.model.ids import row_ids
from shardq.records.results import Result
from shardq.stores.sqlite import SqliteStore
from shardq.tasks.job import Job, JobState, _JobLooks
from shardq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq import Message, Queue


KEEP_MS = 600_000


@pytest.fixture
def queue(world: World) -> Queue:
    return world.connect().queue(world.queue_name(), history="off", backoff="1h")


def put(queue: Queue, *, keep_ms: int | None = KEEP_MS, **options: Any) -> Job[Any]:
    """A job, as a task puts it."""
    return Job(queue, queue.put("{}", **options), keep_ms=keep_ms, task="mail.welcome")


def write(job: Job[Any], state: str, *, keep_ms: int = KEEP_MS, **told: Any) -> None:
    """Say how it stands, as a worker does."""
    told.setdefault("attempt", 1)
    if job.message is not None:
        told.setdefault("entered_us", job.message._row.entered_us)
    job._queue._home.results.write(job.id, Result(state, **told), keep_ms)


def end(job: Job[Any]) -> Any:
    """Its result, waited for; on Cassandra not for as long as a write may take there."""
    return job.result("0s" if job._queue._home.store.write_timeout_ms > 2_000 else None)


def take(queue: Queue) -> Message:
    """The next job, as a worker gets it."""
    [message] = queue.receive(1, "1m", wait="20s")
    return message


# How it stands ------------------------------------------------------------------------------------


@on_each_store
def test_a_job_goes_from_waiting_to_done(queue: Queue) -> None:
    later = put(queue, delay="1h")
    assert (later.state, later.attempt, later.error, later.progress) == (
        JobState.WAITING, 0, None, None,
    )  # fmt: skip
    job = put(queue)
    assert job.state is JobState.WAITING
    message = take(queue)
    assert (job.state, job.attempt) == (JobState.RUNNING, 1)
    write(job, "running", progress=0.25, note="a quarter")
    assert job.progress == (0.25, "a quarter")
    assert job.state is JobState.RUNNING
    write(job, "done", value=b'{"sent":3}', progress=1.0)
    queue.ack(message)
    assert job.state is JobState.DONE == "done"
    assert job.result() == job.result("0s") == {"sent": 3}
    assert (job.attempt, job.error, job.traceback, job.progress) == (1, None, None, (1.0, ""))


def test_a_job_that_fails_says_why_and_is_retried(queue: Queue) -> None:
    job = put(queue)
    message = take(queue)
    write(job, "retrying", error="ValueError: no", traceback="Traceback ..\nValueError: no")
    queue.retry(message, reason="ValueError: no")
    assert job.state is JobState.RETRYING
    assert (job.error, job.traceback, job.attempt) == (
        "ValueError: no", "Traceback ..\nValueError: no", 1,
    )  # fmt: skip
    with pytest.raises(JobTimeout, match=r"has no result after 0s: in back-off until .*no\"\.$"):
        job.result("0s")


def test_a_job_that_waits_for_long_and_has_moved_is_not_gone(world: World, queue: Queue) -> None:
    job = put(queue, keep_ms=None)
    queue.retry(take(queue), delay="9h", reason="no")
    assert job.state is JobState.RETRYING
    kept = put(queue)
    queue.snooze(take(queue), "9h")
    assert kept.state is JobState.WAITING
    with pytest.raises(JobTimeout, match=r"put off .*snoozed"):
        kept.result("1s" if world.is_real else "1h")


def test_a_job_that_died_says_why(queue: Queue) -> None:
    job = put(queue)
    message = take(queue)
    write(job, "failed", attempt=3, error="ValueError: no\nsee", traceback="Traceback ..")
    queue.bury(message, "ValueError: no")
    assert (job.state, job.error, job.attempt) == (JobState.FAILED, "ValueError: no\nsee", 3)
    with pytest.raises(JobFailed) as caught:
        job.result()
    assert str(caught.value) == f"job {job.id} of task mail.welcome failed: ValueError: no .."
    assert (caught.value.error, caught.value.traceback) == ("ValueError: no\nsee", "Traceback ..")
    assert caught.value.__notes__ == ["In its worker:\nTraceback .."]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.error) == (str(caught.value), caught.value.error)


def test_a_job_of_no_use_any_more_says_so(queue: Queue) -> None:
    job = put(queue)
    message = take(queue)
    write(job, "expired", error="due 3 h ago")
    queue.ack(message)
    assert job.state is JobState.EXPIRED
    with pytest.raises(JobExpired, match=r"was of no use any more when it was to run: due 3 h"):
        job.result()


def test_the_value_of_a_result_is_made_by_the_task_s_signature(queue: Queue) -> None:
    class Signature:
        def decode_result(self, data: bytes) -> tuple[str, bytes]:
            return "decoded", data

    message = queue.put("{}")
    job: Job[Any] = Job(queue, message, signature=Signature(), keep_ms=1, task="t")
    write(job, "done", value=b"7")
    assert job.result() == ("decoded", b"7")
    assert Job(queue, message.id).result() == 7


# Where nobody runs it any more --------------------------------------------------------------------


def test_nobody_waits_for_a_job_that_was_cancelled(queue: Queue) -> None:
    job = put(queue, delay="1h")
    assert job.cancel()
    assert not job.cancel()
    assert job.state is JobState.CANCELLED
    with pytest.raises(JobCancelled, match=r"mail.welcome was cancelled or purged"):
        end(job)
    with pytest.raises(JobCancelled):
        job.result("0s")


def test_nobody_waits_for_a_job_that_was_purged(world: World, queue: Queue) -> None:
    job = put(queue, delay="1h")
    world.pass_time(0.01)
    queue.purge()
    assert job.state is JobState.CANCELLED
    with pytest.raises(JobCancelled):
        job.result()


def test_nobody_waits_for_a_job_that_was_cancelled_between_two_attempts(queue: Queue) -> None:
    job = put(queue)
    message = take(queue)
    write(job, "retrying", error="no")
    queue.retry(message, delay="1h", reason="no")
    found = queue.find(job.id)
    assert found is not None
    assert queue.cancel(found)
    assert job.state is JobState.CANCELLED
    with pytest.raises(JobCancelled):
        end(job)


def test_nobody_waits_for_a_job_that_was_buried_by_somebody_else(queue: Queue) -> None:
    job = put(queue)
    message = take(queue)
    write(job, "running", progress=0.5)
    queue.bury(message, "by hand")
    assert (job.state, job.error) == (JobState.FAILED, "by hand")
    with pytest.raises(JobFailed, match=r"failed: by hand$") as caught:
        job.result()
    assert (caught.value.error, caught.value.traceback) == ("by hand", "")


def test_nobody_waits_for_a_job_whose_workers_all_died(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), history="off", attempts=1)
    job = put(queue)
    assert queue.receive(1, "2s", wait="20s")
    until_us = world.clock.boot_us() + 60_000_000
    while job.state is not JobState.FAILED:
        assert world.clock.boot_us() < until_us
        assert queue.receive(1, "2s") == []
        world.pass_time(0.1)
    with pytest.raises(JobFailed, match="failed: out of attempts: its consumer died"):
        job.result()


@on_each_store
def test_a_history_says_what_became_of_a_job_without_a_result(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), history="1d")
    cancelled, acked, nothing = (put(queue, delay=delay) for delay in ("1h", "0s", "1h"))
    plain = put(queue, keep_ms=None, delay="1h")
    assert cancelled.cancel()
    assert plain.cancel()
    queue.ack(take(queue))
    assert [job.state for job in (cancelled, plain, acked, nothing)] == [
        "cancelled", "cancelled", "done", "waiting",
    ]  # fmt: skip
    with pytest.raises(JobCancelled):
        cancelled.result()
    with pytest.raises(NoResult, match="has ended, and its result is not kept any more"):
        acked.result()


@on_each_store
def test_a_result_is_gone_after_its_time(world: World, queue: Queue) -> None:
    job = put(queue, keep_ms=1_000)
    message = take(queue)
    write(job, "done", value=b"1", keep_ms=1_000)
    queue.ack(message)
    # A busy machine may take longer to look than the real one keeps it.
    assert world.is_real or job.state is JobState.DONE
    for _ in range(600):
        if job.state is not JobState.DONE:
            break
        world.pass_time(0.1)
    assert job.state is JobState.UNKNOWN
    with pytest.raises(NoResult, match=r"no result of it is kept: it has ended, was cancelled"):
        end(job)


def test_a_job_that_keeps_no_result_has_a_state_and_says_that_it_keeps_none(queue: Queue) -> None:
    job = put(queue, keep_ms=None)
    assert (job.state, job.progress, job.traceback) == (JobState.WAITING, None, None)
    with pytest.raises(NoResult, match=r"keeps no result; .* keep='1d'"):
        job.result()
    queue.ack(take(queue))
    assert job.state is JobState.UNKNOWN


# Waiting ------------------------------------------------------------------------------------------


def test_a_result_is_waited_for(world: World, queue: Queue) -> None:
    job = put(queue)
    if not world.is_real:
        write(job, "done", value=b"1")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(job.result, "1m")
        if world.is_real:
            write(job, "done", value=b"1")
        assert told.result(60) == 1


def test_who_waits_so_long_and_no_longer_is_told_where_the_job_is(queue: Queue) -> None:
    job = put(queue, delay="1h")
    clock = job._clock
    begun_us = clock.boot_us()
    with pytest.raises(TimeoutError, match=r"has no result after 1500ms: waiting: due ") as caught:
        job.result("1500ms")
    assert isinstance(caught.value, (JobTimeout, JobError))
    assert clock.boot_us() - begun_us >= 1_500_000
    if isinstance(clock, ManualClock):
        assert clock.boot_us() - begun_us < 1_510_000


class Acting(ManualClock):
    """A clock during whose sleeps others act, each at its time since the start."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[tuple[float, Callable[[], object]]] = []
        self.since_us = self.boot_us()

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        self.acts.append((seconds, act))

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        while self.acts and self.boot_us() - self.since_us >= self.acts[0][0] * 1e6:
            self.acts.pop(0)[1]()


@pytest.fixture
def clock() -> Acting:
    return Acting()


@pytest.fixture
def local(clock: Acting) -> Iterator[Queue]:
    """A queue in memory, by that clock."""
    store = SqliteStore(
        machine_us=clock.true_us, boot_time=lambda: BootTime(clock.boot_us(), "stage")
    )
    store.open()
    connection = Connection(store, clock, background=False)
    atexit.unregister(connection.close)
    yield connection.queue("mail", history="off")
    store.close()


def test_a_result_is_told_half_a_second_after_it_was_written(clock: Acting, local: Queue) -> None:
    job = put(local)
    clock.at(100, lambda: write(job, "done", value=b"1"))
    assert job.result() == 1
    assert clock.boot_us() - clock.since_us < 100_550_000
    assert min(clock.slept) >= 0.001
    assert clock.slept[0] == 0.02
    assert max(clock.slept) == 0.5


def test_looking_where_a_job_is_costs_less_the_longer_it_is_waited_for(
    clock: Acting, local: Queue
) -> None:
    job = put(local, delay="1h")
    looked: list[int] = []
    find = local._home.store.find
    local._home.store.find = lambda places: looked.append(clock.boot_us()) or find(places)
    with pytest.raises(JobTimeout):
        job.result("10m")
    seconds = [round((at_us - clock.since_us) / 1e6, 1) for at_us in looked]
    assert seconds[:4] == [0.3, 3.3, 7.8, 14.6]
    assert len(seconds) < 20


def test_a_search_that_takes_long_is_not_repeated_soon(clock: Acting, local: Queue) -> None:
    job = put(local, delay="1h")
    looked: list[int] = []
    find = local._home.store.find

    def slow(places: Any) -> Any:
        looked.append(clock.boot_us())
        clock.advance(4)
        return find(places)

    local._home.store.find = slow
    with pytest.raises(JobTimeout):
        job.result("4m")
    gaps_us = [later - sooner for sooner, later in pairwise(looked[:-1])]
    assert gaps_us == [pytest.approx(84_000_000, abs=600_000)] * 2


def test_a_job_that_moves_as_it_is_looked_for_is_not_taken_for_cancelled(
    clock: Acting, local: Queue
) -> None:
    def lose_for_a_moment() -> Job[Any]:
        job = put(local, delay="1h")
        row = job._message._row
        moved = row._replace(id=row_ids.next(clock.now_us()), first=row.id)
        local._home.store.delete([row.position])
        now_s = (clock.boot_us() - clock.since_us) / 1e6
        clock.at(now_s + 0.2, lambda: local._home.store.insert([moved]))
        return job

    assert lose_for_a_moment().state is JobState.WAITING
    with pytest.raises(JobTimeout, match=r": waiting: due "):
        lose_for_a_moment().result("0s")
    job = put(local, delay="1h")
    looks = _JobLooks(job._where, clock, 0)
    row = job._message._row
    local._home.store.delete([row.position])
    assert not looks.is_over(is_last=False)
    local._home.store.insert([row._replace(id=row_ids.next(0), first=row.id)])
    clock.advance(looks.next_s())
    assert not looks.is_over(is_last=False)


def test_a_job_that_ends_as_it_is_looked_for_is_not_taken_for_cancelled(
    clock: Acting, local: Queue
) -> None:
    store = local._home.store
    for ask in (lambda job: job.state, lambda job: job.result("1m"), lambda job: job.result("0s")):
        job = put(local, delay="1h")
        store.delete([job._message._row.position])
        begun_s = (clock.boot_us() - clock.since_us) / 1e6
        clock.at(begun_s + 0.2, lambda job=job: write(job, "done", value=b'"done"'))
        assert ask(job) == "done"


def test_a_row_of_another_machine_is_waited_for_as_long_as_its_write_may_take(
    clock: Acting, local: Queue
) -> None:
    store = local._home.store
    store.write_timeout_ms = 2_000
    job = put(local, delay="1h")
    row = job._message._row
    store.delete([row.position])
    clock.at(4.1, lambda: store.insert([row._replace(id=row_ids.next(0), first=row.id)]))
    clock.at(6.0, lambda: write(job, "done", value=b"1"))
    assert job.result() == 1


# By key, and by id alone --------------------------------------------------------------------------


@on_each_store
def test_a_job_with_a_key_is_moved_and_cancelled_and_no_other_of_its_name(queue: Queue) -> None:
    job = put(queue, key="welcome-ada", delay="3d")
    assert job.key == "welcome-ada"
    assert job.move(delay="9d") is Answer.DONE
    assert job.state is JobState.WAITING
    assert job.cancel()
    assert job.state is JobState.CANCELLED
    second = put(queue, key="welcome-ada", delay="3d")
    assert not job.cancel()
    assert job.move(delay="0s") is Answer.NOT_THERE
    assert job.state is JobState.CANCELLED
    assert second.state is JobState.WAITING
    with pytest.raises(JobCancelled):
        job.result("1s")
    running = put(queue, key="k")
    take(queue)
    assert running.move(delay="1h") is Answer.RUNNING
    assert not running.cancel()


def test_a_job_without_a_key_is_cancelled_wherever_it_waits_for_its_next_attempt(
    queue: Queue,
) -> None:
    for delay in ("1h", "3d"):
        job = put(queue)
        message = take(queue)
        write(job, "retrying", error="no")
        queue.retry(message, delay=delay, reason="no")
        assert job.state is JobState.RETRYING
        assert job.cancel()
        assert not job.cancel()
        assert job.state is JobState.CANCELLED
    assert queue.depth(exact=True).total == 0
    job = put(queue)
    message = take(queue)
    write(job, "done", value=b"1")
    queue.ack(message)
    assert not job.cancel()


def test_a_job_that_was_moved_to_an_earlier_time_may_have_ended_before_its_first_due(
    world: World, queue: Queue
) -> None:
    job = put(queue, key="k", delay="9d", keep_ms=1_000)
    assert job.move(delay="0s")
    message = take(queue)
    write(job, "done", value=b"1", keep_ms=1_000)
    queue.ack(message)
    world.pass_time(2.1)
    assert job.state is JobState.UNKNOWN


def test_a_job_without_a_key_cannot_be_moved(queue: Queue) -> None:
    job = put(queue)
    with pytest.raises(UsageError, match=r"has no key; put it by using\(key=\.\.\)"):
        job.move(delay="1h")


def test_a_job_is_held_by_its_id_alone(world: World, queue: Queue) -> None:
    put_elsewhere = put(queue, delay="1h")
    twin = world.connect().queue(queue.name)
    job: Job[Any] = Job(twin, put_elsewhere.id)
    assert (job.state, job.due, job.key, job.task) == (JobState.WAITING, None, None, "")
    assert repr(job) == f"<Job {job.id} in queue {queue.name!r}>"
    with pytest.raises(JobTimeout):
        job.result("0s")
    assert job.cancel()
    assert not job.cancel()
    assert job.state is JobState.UNKNOWN
    with pytest.raises(NoResult, match="never was there"):
        end(job)
    keyed = put(queue, delay="1h", key="k")
    found: Job[Any] = Job(twin, keyed.id, key="k", keep_ms=KEEP_MS)
    assert found.move(delay="2h")
    assert found.cancel()
    assert not Job(twin, keyed.id, key="k").cancel()


def test_a_job_far_ahead_is_found_by_its_key_at_once(clock: Acting, local: Queue) -> None:
    job = put(local, delay="9h", key="k")
    assert job.move(delay="99h")
    for one in (job, Job(local, job.id, key="k")):
        assert one.state is JobState.WAITING
    assert clock.slept == []


def test_a_job_says_what_it_is_and_cannot_be_pickled(queue: Queue) -> None:
    job = put(queue, delay="1h")
    assert repr(job) == f"<Job {job.id} of task mail.welcome in queue {queue.name!r}>"
    assert job.due == job._message.due
    with pytest.raises(UsageError, match=rf"call app.job\('{job.id}', queue='{queue.name}'\)"):
        pickle.dumps(job)


@on_each_store
def test_a_result_is_of_one_put_though_another_has_its_id(queue: Queue) -> None:
    before = put(queue, id="x")
    write(before, "done", value=b"1")
    queue.cancel(before.message)
    after = put(queue, id="x")
    assert (before.state, before.result("0s")) == (JobState.DONE, 1)
    assert (after.state, after.error, after.attempt) == (JobState.WAITING, None, 0)
    with pytest.raises(JobTimeout):
        after.result("0s")
    write(after, "done", value=b"50")
    assert after.result("0s") == 50
    # An id alone leads to the last run.
    assert Job(queue, "x").result("0s") == 50
