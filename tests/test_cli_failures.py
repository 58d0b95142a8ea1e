"""`failures` and `running`: what failed lately and what runs now, over all queues."""

from __future__ import annotations

import pytest
from shell import Shell, shell

import shardq
from shardq import connect
from shardq.cli.exits import Exit
from shardq.inspection import failed
from shardq.model.settings import OFF
from shardq.model.times import due_ms
from shardq.records.membership import Heartbeat
from shardq.stores.tables import MEMBERS


def taken(queue: shardq.Queue) -> shardq.Message:
    [message] = queue.receive(1, wait="1m")
    return message


def test_what_failed_is_shown_of_all_queues_with_what_happens_next(shell: Shell) -> None:
    with connect(shell.url) as db:
        mail, shop = db.queue("mail", lanes=1), db.queue("shop", lanes=1)
        letter = mail.put("ada")
        mail.bury(taken(mail), "no such address")
        again = shop.put("{}", headers={"task": "shop.charge"})
        shop.retry(taken(shop), "10m", reason="OSError: no route\nto the bank")
        mail.put("snoozed")
        mail.snooze(taken(mail), "1h")
        mail.put("never tried")
    later, dead = shell.ok("failures", "--json").lines
    assert later | {"at": "", "again": ""} == {
        "at": "", "queue": "shop", "task": "shop.charge", "id": again.id, "attempt": 1,
        "error": "OSError: no route\nto the bank", "next": "again", "again": "",
    }  # fmt: skip
    assert due_ms(later["again"]) - due_ms(later["at"]) == pytest.approx(600_000, abs=2_000)
    assert (dead["queue"], dead["id"], dead["task"]) == ("mail", letter.id, None)
    assert (dead["error"], dead["next"], dead["again"]) == ("no such address", "dead", None)
    heads, first, second = shell.ok("failures").out.splitlines()
    assert heads.split() == ["failed", "queue", "task", "id", "attempt", "next", "error"]
    assert f"shop   shop.charge  {again.id}        1  again in " in first
    assert first.endswith("OSError: no route ..")
    assert second.split()[1:] == ["mail", "-", letter.id, "1", "dead", *["no", "such", "address"]]
    assert [one["id"] for one in shell.ok("failures", "mail", "--json").lines] == [letter.id]
    assert [one["id"] for one in shell.ok("failures", "-n", "1", "--json").lines] == [again.id]
    of_task = shell.ok("failures", "--task", "shop.charge", "--json").lines
    assert [one["id"] for one in of_task] == [again.id]
    assert shell.ok("failures", "--since", "2100-01-01T00:00Z").out == (
        "Nothing that is there has failed.\n"
    )
    assert "'mial'" in shell.fails(Exit.UNKNOWN_QUEUE, "failures", "mial")


def test_a_failure_that_is_due_or_runs_again_says_so_and_ends_with_its_message(
    shell: Shell,
) -> None:
    with connect(shell.url) as db:
        mail = db.queue("mail", lanes=1)
        mail.put("ada")
        mail.retry(taken(mail), "0s", reason="refused")
        assert [one["next"] for one in shell.ok("failures", "--json").lines] == ["due"]
        message = taken(mail)
        [running] = shell.ok("failures", "--json").lines
        assert (running["next"], running["attempt"]) == ("running", 1)
        mail.ack(message)
    assert shell.ok("failures", "--json").lines == []


def test_the_dead_of_a_queue_are_found_where_its_setting_sends_them(shell: Shell) -> None:
    with connect(shell.url) as db:
        db.queue("grave", lanes=1)
        mail, fax = (db.queue(name, lanes=1, dead=kept) for name, kept in
                     (("mail", "grave"), ("fax", OFF)))  # fmt: skip
        for queue in (mail, fax):
            queue.put("x")
            queue.bury(taken(queue), "no")
    for asked in ([], ["mail"]):
        [one] = shell.ok("failures", *asked, "--json").lines
        assert (one["queue"], one["next"]) == ("mail", "dead")
    assert shell.ok("failures", "fax", "--json").lines == []


def test_a_queue_of_more_messages_than_are_read_says_so(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed, "ROWS_MAX", 5)
    with connect(shell.url) as db:
        db.queue("mail").put_many(["x"] * 6)
    assert "mail: only the 5 messages due first were read." in shell.ok("failures").err


def test_what_runs_is_shown_of_all_queues_with_task_worker_and_run_time(shell: Shell) -> None:
    with connect(shell.url) as db:
        for name in ("mail", "shop"):
            db.queue(name)
        now_ms = db._home.clock.now_ms()
        of_jobs = Heartbeat(
            threads=2,
            running=3,
            runs=(("job-1", now_ms - 90_000), ("job-2", now_ms - 1_000)),
            tasks=("shop.charge", ""),
        )
        older = Heartbeat(threads=2, running=1, runs=(("letter", now_ms - 200_000),))
        for queue, beat in (("shop", of_jobs), ("mail", older)):
            db._home.store.note(MEMBERS, (queue,), {f"{queue}:1": beat.to_json()}, 600_000)
    done = shell.ok("running", "--json")
    assert [(one["queue"], one["task"], one["id"], one["worker"]) for one in done.lines] == [
        ("mail", None, "letter", "mail:1"),
        ("shop", "shop.charge", "job-1", "shop:1"),
        ("shop", None, "job-2", "shop:1"),
    ]
    assert [one["run_ms"] for one in done.lines] == pytest.approx(
        [200_000, 90_000, 1_000], abs=60_000
    )
    assert done.err == "1 more run: a consumer names the 32 that began first.\n"
    heads, *rows = shell.ok("running").out.splitlines()
    assert heads.split() == ["task", "queue", "id", "worker", "since", "for"]
    assert rows[1].split()[:4] == ["shop.charge", "shop", "job-1", "shop:1"]
    of_task = shell.ok("running", "shop", "--task", "shop.charge", "--json").lines
    assert [one["id"] for one in of_task] == ["job-1"]


def test_nothing_runs_where_no_consumer_is(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    assert shell.ok("running").out == "Nothing runs.\n"
