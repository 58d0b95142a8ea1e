"""Presence: a member whose process has ended is known to be dead, and no other is."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from forked import Process

import shardq
from shardq.clock import SystemClock
from shardq.errors import StoreUnavailable
from shardq.records.membership import heartbeats
from shardq.records.presence import Presence
from shardq.stores.sqlite import SqliteStore
from shardq.testing import ManualClock

HOLDER = "mailer:4711/5b1c09aa"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db-members"


def present(beside: Path | None, holder: str = HOLDER) -> Presence:
    made = Presence(beside, holder, ManualClock())
    made.keep()
    return made


def looker(beside: Path) -> Presence:
    return present(beside, "looker/0")


@contextmanager
def process(work: Callable[[], object]) -> Iterator[int]:
    """A forked child that does some work, says so, and waits to be killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            kept = work()
            os.write(writes, b"1")
            while kept is not writes:
                signal.pause()
        os._exit(1)
    os.close(writes)
    try:
        ready, _, _ = select.select([reads], [], [], 60)
        assert ready
        assert os.read(reads, 1) == b"1"
        yield child
    finally:
        os.close(reads)
        end(child)


def end(child: int) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_member_is_dead_once_its_process_is_killed_and_not_before(beside: Path) -> None:
    me = looker(beside)
    with process(lambda: present(beside)) as child:
        assert not me.is_dead(HOLDER)
        os.kill(child, signal.SIGSTOP)
        assert not me.is_dead(HOLDER)
        end(child)
        assert me.is_dead(HOLDER)
        assert me.dead_of({"mailer": HOLDER, "other": "other/1", "old": ""}) == ["mailer"]


def test_a_forked_child_neither_keeps_nor_drops_its_parent_s_lock(beside: Path) -> None:
    me = looker(beside)
    children: list[int] = []
    reads, writes = os.pipe()

    def member_with_children() -> Presence:
        kept = present(beside)
        for kind in range(3):
            child = os.fork()
            if not child:
                with suppress(BaseException):
                    if kind == 0:
                        # It ends by itself, with all that a process closes.
                        os._exit(0)
                    if kind == 1:
                        kept.leave()
                    os.write(writes, os.getpid().to_bytes(4, "big"))
                    while True:
                        signal.pause()
                os._exit(1)
            if kind == 0:
                os.waitpid(child, 0)
        started = multiprocessing.get_context("fork").Process(target=kept.leave)
        started.start()
        started.join()
        return kept

    with process(member_with_children) as parent:
        try:
            children += [int.from_bytes(os.read(reads, 4), "big") for _ in range(2)]
            assert not me.is_dead(HOLDER)
            end(parent)
            assert me.is_dead(HOLDER)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)


def test_a_child_that_begins_for_itself_is_a_member_of_its_own(beside: Path) -> None:
    parent = present(beside)

    def child() -> Presence:
        # A lock of the parent is another process's here.
        assert not present(beside, "child/1").is_dead(HOLDER)
        return present(beside, "child/2")

    with process(child) as pid:
        assert not parent.is_dead("child/2")
        end(pid)
        assert parent.is_dead("child/2")
    assert not parent.is_dead("nobody/3")


def test_members_of_one_process_do_not_take_each_other_for_dead(beside: Path) -> None:
    one, two = present(beside), present(beside, "other/1")
    assert not one.is_dead("other/1")
    assert not two.is_dead(HOLDER)

    def look() -> Presence:
        me = looker(beside)
        # The looks above have closed nobody's file.
        assert not me.is_dead(HOLDER)
        assert not me.is_dead("other/1")
        return me

    with process(look):
        pass


def test_a_lock_that_other_code_has_dropped_is_taken_again(beside: Path) -> None:
    clock = ManualClock()
    one = Presence(beside, HOLDER, clock)
    one.keep()
    [path] = beside.iterdir()
    # A copy of the directory does this, say.
    path.read_bytes()
    clock.advance(0.25)
    one.keep()

    def look() -> None:
        assert not looker(beside).is_dead(HOLDER)

    with process(look):
        pass


def test_a_member_that_leaves_takes_its_file_along_and_the_last_the_directory(
    beside: Path,
) -> None:
    one, two = present(beside), present(beside, "other/1")
    assert len(list(beside.iterdir())) == 2
    one.leave()
    assert len(list(beside.iterdir())) == 1
    assert not two.is_dead(HOLDER)
    two.leave()
    two.leave()
    assert not beside.exists()


def test_who_seemed_dead_and_beats_is_not_dead_again(
    beside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    me = looker(beside)
    with process(lambda: present(beside)) as child:
        end(child)
    assert me.is_dead(HOLDER)
    me.doubt(HOLDER)
    assert not me.is_dead(HOLDER)
    assert "leases decide alone" in caplog.text


def test_files_of_the_dead_are_removed_once_no_lease_can_be_theirs(beside: Path) -> None:
    clock = ManualClock()
    me = Presence(beside, "looker/0", clock)
    me.keep()
    with process(lambda: (present(beside), present(beside, "other/1"))) as child:
        alive = present(beside, "alive/2")
        end(child)
    for name in ("other%2F1", "looker%2F0", "alive%2F2"):
        os.utime(beside / name, (1, 1))
    clock.advance(60)
    me.keep()
    assert {path.name for path in beside.iterdir()} == {
        "looker%2F0",
        "alive%2F2",
        "mailer:4711%2F5b1c09aa",
    }
    # The process marks its own file as in use.
    assert (beside / "looker%2F0").stat().st_mtime > 1
    alive.leave()


def test_what_is_no_file_of_a_member_tells_nothing(beside: Path) -> None:
    me = looker(beside)
    os.mkfifo(beside / "pipe%2F1")
    (beside / "folder%2F2").mkdir()
    (beside / "real").touch()
    (beside / "link%2F3").symlink_to(beside / "real")
    (beside.parent / "jobs.db").touch()
    holders = ["pipe/1", "folder/2", "link/3", "gone/4", ""]
    # Others tell these, and may tell anything.
    holders += ["..", ".", "/", "../jobs.db", "a/../../jobs.db", "\0", "\ud800", "m" * 3_500]
    assert not any(me.is_dead(holder) for holder in holders)
    assert not me.is_dead("looker/0")


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_nothing_can_be_locked_leases_decide(
    beside: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    one = present(beside)
    assert not list(beside.iterdir())
    assert not one.is_dead("other/1")
    one.leave()


@pytest.mark.parametrize("what", ["file", "gone", "full name", "memory"])
def test_where_no_file_can_be_made_leases_decide(tmp_path: Path, what: str) -> None:
    beside: Path | None = tmp_path / "jobs.db-members"
    assert beside is not None
    holder = HOLDER
    if what == "file":
        beside.touch()
    elif what == "gone":
        beside = tmp_path / "gone" / "jobs.db-members"
    elif what == "full name":
        holder = "m" * 256 + "/5b1c09aa"
    else:
        beside = None
    one = present(beside, holder)
    one.keep()
    assert not one.is_dead("other/1")
    one.leave()


def test_a_directory_that_is_removed_leaves_the_decision_to_leases(beside: Path) -> None:
    clock = ManualClock()
    one = Presence(beside, HOLDER, clock)
    one.keep()
    for path in beside.iterdir():
        path.unlink()
    beside.rmdir()
    clock.advance(61)
    one.keep()
    assert not one.is_dead("other/1")
    one.leave()


def test_all_names_of_a_database_have_their_files_in_one_place(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "folder").symlink_to(real)
    (tmp_path / "link.db").symlink_to(real / "jobs.db")
    store = SqliteStore(real / "jobs.db")
    store.open()
    store.close()
    found = set()
    for path in (real / "jobs.db", tmp_path / "folder" / "jobs.db", tmp_path / "link.db"):
        store = SqliteStore(path)
        store.open()
        assert store.beside is not None
        found.add(store.beside.resolve())
        store.close()
    assert found == {(real / "jobs.db-members").resolve()}
    for store in (SqliteStore(), SqliteStore(real / "jobs.db", read_only=True)):
        store.open()
        assert store.beside is None
        store.close()


KILLED = """
import os, sys, time, shardq
def handle(message):
    print(message.text, message.attempt, flush=True)
    time.sleep(600)
with shardq.connect(sys.argv[1]) as db:
    shardq.run(shardq.Consumer(db.queue("mail"), handle, threads=1, member=sys.argv[2]))
"""


def killed_consumer(url: str, member: str) -> str:
    """What a consumer was given that is killed while it runs."""
    with Process(["-c", KILLED, url, member], cwd=Path.cwd(), env=os.environ) as child:
        assert child.stdout is not None
        try:
            return child.stdout.readline().decode().strip()
        finally:
            child.kill()


def test_what_a_killed_consumer_ran_is_in_flight_until_another_finds_it_dead(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with shardq.connect(url) as db:
        queue = db.queue("mail", lanes=1)
        queue.put(b"poison")
        with Process(["-c", KILLED, url, "mailer"], cwd=Path.cwd(), env=os.environ) as child:
            try:
                while queue.depth(exact=True).in_flight == 0:
                    SystemClock().sleep(0.01)
            finally:
                child.kill()
        # Its heartbeat would expire in 10 s; now in ten minutes.
        later = "until_us = until_us + 600000000, until_boot_us = until_boot_us + 600000000"
        db._home.store._database.write(f"UPDATE members SET {later}", ())
        consumer = shardq.Consumer(queue, lambda _: None, threads=1)
        members = queue._home.register.members_key
        while "mailer" in heartbeats(db._home.store, members):
            SystemClock().sleep(max(consumer.step(), 0.001))
        consumer.close()
        assert queue.depth(exact=True).in_flight == 0


def test_what_a_killed_consumer_held_is_taken_over_with_care_while_its_lease_lasts(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with shardq.connect(url) as db:
        # If the lease decided, the test would wait for a minute.
        queue = db.queue("mail", lease="1m", lanes=1)
        queue.put(b"poison")
        # The second has the name of the first. What it begins is recorded, and so counts.
        assert killed_consumer(url, "mailer") == "poison 1"
        assert killed_consumer(url, "mailer") == "poison 1"
        queue.put(b"harmless")
        seen: list[tuple[str, int]] = []
        consumer = shardq.Consumer(
            queue,
            lambda message: seen.append((message.text, message.attempt)),
            threads=1,
            member="mailer",
        )
        consumer.run(until_empty=True)
    assert sorted(seen) == [("harmless", 1), ("poison", 2)]


@pytest.mark.parametrize("how", ["link", "file", "foreign", "not empty"])
def test_a_directory_of_somebody_else_s_is_refused_and_nothing_in_it_is_removed(
    tmp_path: Path, how: str
) -> None:
    theirs = tmp_path / "docs"
    theirs.mkdir()
    letter = theirs / ("mailer:4711%2F5b1c09aa" if how == "not empty" else "letter.txt")
    letter.write_text("dear")
    os.utime(letter, (1, 1))
    beside = tmp_path / "jobs.db-members"
    if how == "link":
        beside.symlink_to(theirs)
    elif how == "file":
        beside.write_text("x")
    else:
        theirs.rename(beside)
        letter = beside / letter.name
    with pytest.raises(StoreUnavailable, match=r"keeps its members' files in .*: rename it, or"):
        shardq.connect(f"sqlite:///{tmp_path}/jobs.db")
    assert letter.read_text() == "dear"


def test_a_directory_that_becomes_a_link_while_it_is_used_is_left_alone(
    tmp_path: Path, beside: Path
) -> None:
    theirs = tmp_path / "docs"
    theirs.mkdir()
    letter = theirs / "mailer:1%2F00"
    letter.touch()
    os.utime(letter, (1, 1))
    beside.symlink_to(theirs)
    clock = ManualClock()
    one = Presence(beside, HOLDER, clock)
    for _ in range(3):
        one.keep()
        clock.advance(61)
    assert list(theirs.iterdir()) == [letter]
