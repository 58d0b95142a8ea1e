"""Live and ready: a worker with busy threads is alive, one whose loop hangs is not."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import shardq
from shardq import App
from shardq.clock import SystemClock
from shardq.errors import UsageError
from shardq.health.beat import Beat, systemd
from shardq.health.page import HealthPage, place_of
from shardq.health.vitals import ConsumerVitals, Readiness, Sign
from shardq.tasks import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardq.testing import Stage

WAIT_S = 60


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what is expected, for up to a minute."""
    clock = SystemClock()
    end_us = clock.boot_us() + WAIT_S * 1_000_000
    while not is_so():
        assert clock.boot_us() < end_us
        clock.sleep(0.005)


@contextmanager
def running(consumer: shardq.Consumer) -> Iterator[None]:
    consumer.start()
    try:
        yield
    finally:
        consumer.stop()
        consumer.join(WAIT_S)


class Blocking(logging.Handler):
    """A log that takes nothing, as one on a disk that hangs: whoever logs there waits."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached = threading.Event()
        self.goes_on = threading.Event()

    def emit(self, _record: logging.LogRecord) -> None:
        self.is_reached.set()
        self.goes_on.wait(WAIT_S)


@contextmanager
def blocked_log(name: str) -> Iterator[Blocking]:
    handler, logger = Blocking(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        handler.goes_on.set()
        logger.removeHandler(handler)


def test_a_consumer_whose_threads_are_all_busy_is_live_and_ready(busy: Stage) -> None:
    db = busy.connect()
    db.queue("mail").put_many(["x"] * 5)
    began, goes_on = threading.Semaphore(0), threading.Event()

    def handle(_message: shardq.Message) -> None:
        began.release()
        goes_on.wait(WAIT_S)

    consumer = shardq.Consumer(db.queue("mail"), handle, threads=2)
    vitals = ConsumerVitals(db, [consumer])
    with running(consumer):
        with busy.ticking():
            assert began.acquire(timeout=WAIT_S)
            assert began.acquire(timeout=WAIT_S)
        for _ in range(15):
            # Less than a loop may take, and then it turns, whatever its threads do.
            busy.clock.advance(4)
            until(lambda: consumer._hung_us() < 4_000_000)
            assert vitals.live() == Sign()
        assert vitals.ready() == Sign()
        goes_on.set()


def test_a_consumer_whose_loop_hangs_is_not_live(busy: Stage) -> None:
    db = busy.connect()
    consumer = shardq.Consumer(db.queue("mail"), lambda _: None)
    vitals = ConsumerVitals(db, [consumer])
    with blocked_log("shardq.engine.news") as log, running(consumer), busy.ticking():
        # The loop logs that the store fails, and waits for the log.
        busy.faults.fail("note members", times=1_000)
        assert log.is_reached.wait(WAIT_S)
        until(lambda: not vitals.live().is_well)
        assert vitals.live().text.startswith("queue mail has not been read for 1")
        busy.faults.heal()
        log.goes_on.set()
        until(lambda: vitals.live().is_well)


def test_a_consumer_that_waits_for_its_store_is_live_and_not_ready(
    busy: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.health.vitals._ANSWER_S", 0.05)
    db = busy.connect()
    consumer = shardq.Consumer(db.queue("mail"), lambda _: None)
    vitals = ConsumerVitals(db, [consumer])
    goes_on, is_reached = threading.Event(), threading.Event()

    def hang() -> None:
        is_reached.set()
        goes_on.wait(WAIT_S)

    with running(consumer):
        busy.faults.call("note members", hang, after=False)
        with busy.ticking():
            assert is_reached.wait(WAIT_S)
        busy.clock.advance(30)
        assert vitals.live() == Sign()
        busy.faults.call("notes queues", hang, after=False)
        assert vitals.ready() == Sign(False, "the store does not answer")
        goes_on.set()
        monkeypatch.setattr("shardq.health.vitals._ANSWER_S", WAIT_S)
        assert vitals.ready() == Sign()


def test_a_store_that_refuses_makes_a_process_unready(stage: Stage) -> None:
    db = stage.connect()
    vitals = ConsumerVitals(db, [])
    stage.faults.fail("notes queues", times=1)
    sign = vitals.ready()
    assert (sign.is_well, sign.text) == (False, "the store does not answer: the store is away")
    assert vitals.ready() == Sign()


def test_a_store_without_its_tables_makes_a_process_unready(stage: Stage) -> None:
    db = stage.connect()
    vitals = ConsumerVitals(db, [shardq.Consumer(db.queue("mail"), print)])
    assert vitals.ready() == Sign()
    stage._sqlite._database.write("ALTER TABLE queues RENAME TO others", ())
    sign = vitals.ready()
    assert not sign.is_well
    assert "no such table: queues" in sign.text
    stage._sqlite._database.write("ALTER TABLE others RENAME TO queues", ())
    assert vitals.ready() == Sign()


def test_a_clock_that_is_too_wrong_for_a_put_makes_a_process_unready(stage: Stage) -> None:
    right = stage.connect().queue("mail", offset="2m")
    db = stage.connect(shift=100)
    queue = db.queue("mail")
    vitals = ConsumerVitals(db, [shardq.Consumer(queue, print)])
    assert vitals.ready() == Sign()
    right.alter(offset="90s")
    queue._home.register.refresh(force=True)
    assert vitals.ready() == Sign(
        False, "the clock is +1m40s from the store's, more than the 1m30s that a put allows"
    )
    assert Readiness(db).sign() == Sign()


def test_a_worker_whose_event_loop_is_blocked_is_not_live(busy: Stage) -> None:
    app = App(busy.connect())
    began, goes_on = threading.Event(), threading.Event()

    @app.task
    async def block() -> None:
        began.set()
        goes_on.wait(WAIT_S)

    block.put()
    worker = Worker(app)
    vitals = ConsumerVitals(app.connection, worker.consumers, lambda: worker.loop_hung_us)
    thread = threading.Thread(target=worker.run)
    thread.start()
    with busy.ticking():
        assert began.wait(WAIT_S)
        until(lambda: not vitals.live().is_well)
        assert vitals.live().text.startswith("the event loop has not turned for 1")
        goes_on.set()
        until(lambda: vitals.live().is_well)
        worker.stop()
        thread.join(WAIT_S)


def test_a_consumer_that_is_told_to_end_is_live_and_not_ready(busy: Stage) -> None:
    db = busy.connect()
    db.queue("mail").put("x")
    began, goes_on = threading.Event(), threading.Event()

    def handle(_message: shardq.Message) -> None:
        began.set()
        goes_on.wait(WAIT_S)

    consumer = shardq.Consumer(db.queue("mail"), handle)
    vitals = ConsumerVitals(db, [consumer])
    with busy.ticking():
        consumer.start()
        assert began.wait(WAIT_S)
        consumer.stop()
        assert vitals.ready() == Sign(False, "leaving")
        assert vitals.live() == Sign()
        goes_on.set()
        consumer.join(WAIT_S)


# The page -----------------------------------------------------------------------------------------


class Told:
    """Vital signs that a test sets."""

    def __init__(self) -> None:
        self.sign = Sign()
        self.is_ending = False

    def live(self) -> Sign:
        return self.sign

    def ready(self) -> Sign:
        return self.sign

    def is_leaving(self) -> bool:
        return self.is_ending


def got(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urlopen(Request(url, method=method), timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_page_answers_200_or_503_with_what_is_wrong() -> None:
    told = Told()
    with closing(HealthPage(("127.0.0.1", 0), "--health")) as page:
        page.add_vitals(told)
        page.start()
        assert got(f"{page.url}/livez") == (200, "ok\n")
        assert got(f"{page.url}/readyz?verbose") == (200, "ok\n")
        assert got(f"{page.url}/livez", "HEAD") == (200, "")
        assert got(f"{page.url}/metrics")[0] == 404
        told.sign = Sign(False, "leaving")
        assert got(f"{page.url}/readyz") == (503, "leaving\n")


@pytest.mark.parametrize("text", ["", "x", "70000", "-1", "host:", "1:x"])
def test_a_place_that_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give PORT or HOST:PORT"):
        place_of(text, "--metrics")


def test_a_host_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--metrics: "):
        HealthPage(("no-such-host.invalid", 0), "--metrics")


# The beat -----------------------------------------------------------------------------------------


def test_a_file_is_touched_while_live_and_removed_at_the_end(tmp_path: Path) -> None:
    told, file = Told(), tmp_path / "alive"
    beat = Beat(told, file=file, tell=None)
    file.unlink()
    beat.turn()
    assert file.exists()
    file.unlink()
    told.sign = Sign(False, "hangs")
    beat.turn()
    assert not file.exists()
    told.sign = Sign()
    beat.turn()
    beat.close()
    assert not file.exists()


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        Beat(Told(), file=tmp_path / "no" / "such", tell=None)


def test_systemd_hears_that_a_process_is_ready_lives_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        beat = Beat(told, file=None, tell=systemd())

        def heard() -> list[str]:
            found = []
            while True:
                try:
                    found.append(manager.recv(64).decode())
                except BlockingIOError:
                    return found

        told.sign = Sign(False, "the store does not answer")
        beat.turn()
        assert heard() == []
        told.sign = Sign()
        beat.turn()
        assert heard() == ["WATCHDOG=1", "READY=1"]
        beat.turn()
        assert heard() == ["WATCHDOG=1"]
        told.is_ending = True
        beat.turn()
        assert heard() == ["STOPPING=1", "WATCHDOG=1"]
        beat.close()
        assert heard() == []
    assert systemd() is None
