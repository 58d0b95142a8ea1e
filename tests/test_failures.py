"""The log of failures: each once, with the user's code first, and never a storm."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from crashing import crash, run_until_crash
from forked import Process
from shell import TIMEOUT_S

from shardq import Bury, Consumer, Message, Retry, Snooze
from shardq.engine.handing.failures import SHOWN_MAX
from shardq.testing import Recorder, Stage


def look_up(_message: Message) -> None:
    raise KeyError("no such user")


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.levelno >= logging.WARNING]


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in warnings(caplog)]


def test_an_exception_of_a_handler_is_a_warning_that_says_what_comes_next(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", attempts=2, backoff="10s")
    sent = queue.put("a")
    stage.drain(queue, Consumer(queue, look_up))
    named = f"message {sent.id} of queue mail failed, attempt"
    why = "KeyError: 'no such user'"
    assert texts(caplog) == [
        f"{named} 1 of 2, again in 10s: {why}",
        f"{named} 2 of 2, buried: out of attempts: {why}",
    ]
    assert {(one.name, one.levelno) for one in warnings(caplog)} == {
        ("shardq.engine.handing.failures", logging.WARNING)
    }


def test_a_traceback_begins_with_the_user_s_code_in_the_log_and_in_the_dead_message(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("a")
    stage.drain(queue, Consumer(queue, look_up))
    [record] = warnings(caplog)
    told = logging.Formatter().format(record).partition("\n")[2]
    first, place, *_ = told.splitlines()
    assert first == "Traceback (most recent call last):"
    assert f'"{__file__}"' in place
    assert place.endswith(", in look_up")
    [dead] = queue.dead.peek()
    assert dead.headers["shardq-traceback"].rstrip() == told.rstrip()


def test_what_is_raised_on_purpose_is_one_line_and_a_snooze_none(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=3)

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise Retry("5s", "the server\nis down") if message.text == "retry" else Bury("bad")

    queue.put("retry")
    queue.put("bury", delay="1s")
    queue.put("snooze", delay="2s")
    snoozed = []

    def snooze_once(message: Message) -> None:
        if message.text == "snooze":
            snoozed.append(message)
            if len(snoozed) == 1:
                raise Snooze("1s")
            return
        handle(message)

    stage.drain(queue, Consumer(queue, snooze_once))
    assert len(snoozed) == 2
    assert [text.partition(" failed, ")[2] for text in texts(caplog)] == [
        "attempt 1 of 3, again in 5s: the server ..",
        "attempt 1 of 3, buried: bad",
    ]
    assert [one.exc_info for one in warnings(caplog)] == [None, None]


@pytest.mark.parametrize("kind", [Retry, Bury])
def test_what_is_raised_on_purpose_shows_its_cause_where_it_has_one(
    stage: Stage, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("a")

    def handle(message: Message) -> None:
        try:
            look_up(message)
        except KeyError as error:
            raise kind from error

    stage.drain(queue, Consumer(queue, handle))
    [record] = warnings(caplog)
    told = logging.Formatter().format(record)
    assert "in look_up" in told
    assert "KeyError: 'no such user'" in told
    [dead] = queue.dead.peek()
    assert "in look_up" in dead.headers["shardq-traceback"]


def test_what_dies_by_crashes_is_one_line(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put("a")
    for _ in range(2):
        assert run_until_crash(stage, Consumer(queue, crash), seconds=1)
        stage.clock.advance(11)
    caplog.clear()
    stage.drain(queue, Consumer(queue, crash))
    [text] = [text for text in texts(caplog) if "failed" in text]
    assert text.endswith(
        "attempt 1 of 1, buried: out of attempts: its consumer died, or its time ran out"
    )


def test_a_burial_in_a_dead_letter_queue_is_told_as_the_retry_that_it_becomes(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.bury(queue.put("a"), "bad")
    acts = iter([Bury("again"), None])

    def handle(_message: Message) -> None:
        if (act := next(acts)) is not None:
            raise act

    stage.drain(queue.dead, Consumer(queue.dead, handle))
    [text] = texts(caplog)
    assert "of queue mail.dead failed, attempt 1, again in 1s: again" in text
    assert queue.dead.totals().buried == 0


def test_a_storm_of_failures_is_a_few_lines_and_a_count_by_kind(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put_many(["a"] * 300 + ["b"] * 200)

    def handle(message: Message) -> None:
        if message.text == "b":
            raise Bury("b")
        look_up(message)

    consumer = Consumer(queue, handle)
    stage.drain(queue, consumer)
    shown = [one for one in warnings(caplog) if " failed, " in one.getMessage()]
    assert len(shown) == SHOWN_MAX
    # Nothing fails any more, and what was left out is told all the same.
    stage.drive(consumer, seconds=2)
    [left_out] = [text for text in texts(caplog) if "more failures" in text]
    kinds = [one.getMessage().rpartition(": ")[2] for one in shown]
    keys = 300 - sum(kind == "'no such user'" for kind in kinds)
    assert left_out.startswith("queue mail: 490 more failures in 1.")
    assert f"{keys} KeyError" in left_out
    assert f"{490 - keys} Bury" in left_out
    assert queue.dead.depth().ready == 500


def test_no_second_has_more_failures_in_the_log_than_the_bound(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put_many(["a"] * 2_000)
    at_us: list[int] = []

    def note_time(record: logging.LogRecord) -> bool:
        if " failed, " in record.getMessage():
            at_us.append(stage.clock.boot_us())
        return True

    def handle(message: Message) -> None:
        stage.clock.advance(0.001)
        look_up(message)

    caplog.handler.addFilter(note_time)
    consumer = Consumer(queue, handle)
    stage.drain(queue, consumer)
    consumer.close()
    caplog.handler.removeFilter(note_time)
    windows = zip(at_us, at_us[SHOWN_MAX:], strict=False)
    assert all(later - first >= 1_000_000 for first, later in windows)
    assert len(at_us) >= 2 * SHOWN_MAX
    counted = [
        int(text.split()[2].replace(",", "")) for text in texts(caplog) if "more failures" in text
    ]
    assert sum(counted) + len(at_us) == 2_000
    # A line a second, however many fail.
    assert len(counted) <= 4


def test_what_was_left_out_is_told_when_the_consumer_ends(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put_many(["a"] * 30)
    consumer = Consumer(queue, look_up)
    stage.drain(queue, consumer)
    assert not any("more failures" in text for text in texts(caplog))
    consumer.close()
    assert sum("queue mail: 20 more failures in" in text for text in texts(caplog)) == 1


def test_kinds_that_never_end_are_counted_together(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put_many(f"Kind{n}" for n in range(60))

    def handle(message: Message) -> None:
        raise type(message.text, (Exception,), {})

    consumer = Consumer(queue, handle)
    stage.drain(queue, consumer)
    consumer.close()
    [left_out] = [text for text in texts(caplog) if "more failures" in text]
    assert "30 others" in left_out
    assert left_out.count("Kind") == 20


def test_a_failure_that_the_store_takes_late_is_told_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put("a")
    stage.faults.fail("move", times=3)
    stage.drain(queue, Consumer(queue, look_up))
    assert sum(" failed, " in text for text in texts(caplog)) == 1


def test_a_burial_whose_answer_is_lost_is_counted_and_what_another_settled_is_not(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put("a")
    stage.faults.fail("move", applied=True)
    consumer = Consumer(queue, look_up)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=10)
    assert (queue.totals().buried, queue.dead.depth().ready) == (1, 1)
    queue.put("b")

    def settle(message: Message) -> None:
        queue.cancel(message)
        look_up(message)

    consumer.close()
    other = Consumer(queue, settle)
    stage.drain(queue, other)
    other.close()
    assert (queue.totals().buried, queue.dead.depth().ready) == (1, 1)


APP = """
import shardq

def look_up(message):
    raise KeyError("no such user")

with shardq.connect("sqlite://") as db:
    queue = db.queue("mail", attempts=2, backoff="10ms")
    queue.put("a")
    shardq.Consumer(queue, look_up, threads=1).run(until_empty=True)
"""


def test_python_s_default_logging_shows_a_failure_so_that_it_can_be_read(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    with Process([str(app)], cwd=tmp_path, env=os.environ) as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    lines = err.decode().splitlines()
    assert len(lines) == 10
    assert lines[0].endswith("attempt 1 of 2, again in 10ms: KeyError: 'no such user'")
    assert lines[1:5] == [
        "Traceback (most recent call last):",
        f'  File "{app}", line 5, in look_up',
        '    raise KeyError("no such user")',
        "KeyError: 'no such user'",
    ]
    assert "attempt 2 of 2, buried: out of attempts: KeyError" in lines[5]
    assert lines[6:] == lines[1:5]


def test_a_recorder_is_no_user_s_code(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("a")
    stage.drain(queue, Consumer(queue, Recorder(stage.clock, look_up)))
    [record] = warnings(caplog)
    assert "stage.py" not in logging.Formatter().format(record)
