"""SQLite files that are only looked at: by `mode=ro`, or where a user may not write."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from shell import Shell, shell
from sqlite_file import run_child

import shardq
from shardq import Consumer
from shardq.cli.exits import Exit
from shardq.errors import BadUrl, SchemaMissing, StoreRefused, StoreUnavailable
from shardq.stores.sqlite import SqliteStore
from shardq.stores.tables import QUEUES

AS_ANOTHER_USER = """
import os, sys
import shardq
from shardq.errors import StoreRefused, StoreUnavailable

# First all that is imported later on: that user may not be able to read Python's own files.
with shardq.connect("sqlite://") as db:
    db.queue("mail", history="1h").bury(db.queue("mail").put("x"))
    db.queue("mail").peek(), db.queue("mail").depth(), db.queue("mail").audit()
if os.getuid() == 0:
    os.setuid(65534)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a message that waits, one that is dead, and a history."""
    made = tmp_path / "jobs.db"
    # In a process of its own: tests with manual clocks leave this process a last id of the future.
    run_child(
        """
        import sys, shardq

        with shardq.connect(f"sqlite:///{sys.argv[1]}") as db:
            mail = db.queue("mail", history="7d", lanes=1)
            mail.put("waits", id="order-7", delay="1h")
            mail.bury(mail.put("dead", id="order-8"))
        """,
        made,
    )
    return made


@pytest.fixture
def open_path(path: Path) -> Iterator[Path]:
    """The same, in a directory into which every user may look."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copy(path, folder)
        yield Path(folder) / path.name
        Path(folder).chmod(0o755)


def run_as_another_user(script: str, *arguments: object) -> str:
    return run_child(AS_ANOTHER_USER + dedent(script), *arguments)


def beside(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.iterdir())


def test_looking_changes_nothing_and_makes_nothing_beside_the_file(path: Path) -> None:
    before = path.read_bytes()
    with shardq.connect(f"sqlite:///{path}?mode=ro") as db:
        mail = db.queue("mail")
        assert db.queues() == ["mail", "mail.dead"]
        assert [message.text for message in mail.peek()] == ["waits"]
        assert mail.find("order-7") is not None
        assert mail.depth().total == mail.depth(exact=True).total == 1
        assert sum(count for _, count in mail.forecast("2h")) == 1
        assert mail.totals().put == 2
        assert mail.audit().is_even
        assert [record.fate for record in mail.history("order-8")] == ["dead"]
        assert [message.id for message in mail.dead.peek()] == ["order-8"]
        assert beside(path) == ["jobs.db"]
    assert beside(path) == ["jobs.db"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "write",
    [
        lambda db: db.queue("mail").put("x"),
        lambda db: db.queue("mail").put_many(["x"]),
        lambda db: db.queue("mail").cancel(db.queue("mail").find("order-7")),
        lambda db: db.queue("mail").redrive(),
        lambda db: db.queue("mail").alter(attempts=3),
        lambda db: db.queue("mail").receive(),
        lambda db: db.queue("new"),
        lambda db: Consumer(db.queue("mail"), print, threads=1).run(until_empty=True),
    ],
    ids=["put", "put_many", "cancel", "redrive", "alter", "receive", "make", "consume"],
)
def test_writing_is_one_error_that_says_why(
    path: Path, write: Callable[[shardq.Connection], object], caplog: pytest.LogCaptureFixture
) -> None:
    with shardq.connect(f"sqlite:///{path}?mode=ro") as db:
        with pytest.raises(StoreRefused) as caught:
            write(db)
        assert str(caught.value) == (
            f"sqlite:///{path}?mode=ro is open for reading only, as its url asks by mode=ro; "
            f"nothing was written."
        )
    assert beside(path) == ["jobs.db"]
    assert caplog.records == []


def test_who_looks_sees_what_others_write_meanwhile(path: Path) -> None:
    with shardq.connect(f"sqlite:///{path}?mode=ro") as looking:
        mail = looking.queue("mail")
        assert len(mail.peek()) == 1
        # Its file was one that nobody changed; now one process does, and another.
        for count in (2, 3):
            with shardq.connect(f"sqlite:///{path}") as db:
                db.queue("mail").put("more", delay="1h")
                assert len(mail.peek()) == count
            assert len(mail.peek()) == count
        with shardq.connect(f"sqlite:///{path}") as db, shardq.connect(looking.url_shown) as late:
            db.queue("mail").put("more", delay="1h")
            assert len(mail.peek()) == len(late.queue("mail").peek()) == 4


def test_after_a_fork_who_looks_still_sees_what_others_write(path: Path) -> None:
    seen = run_child(
        """
        import os, sys
        import shardq
        from shardq.errors import StoreRefused

        url = f"sqlite:///{sys.argv[1]}"
        with shardq.connect(f"{url}?mode=ro") as looking:
            mail = looking.queue("mail")
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            # Both connections are opened anew, the one while nobody has the file open.
            print(len(mail.peek()))
            with shardq.connect(url) as db:
                db.queue("mail").put("more", delay="1h")
                try:
                    mail.put("x")
                except StoreRefused:
                    print(len(mail.peek()))
        """,
        path,
    )
    assert seen == "1\n2\n"


def test_what_a_look_leaves_beside_a_file_is_gone_once_a_writer_closes_it(path: Path) -> None:
    writer = shardq.connect(f"sqlite:///{path}")
    with shardq.connect(f"sqlite:///{path}?mode=ro") as looking:
        writer.queue("mail").put("more", delay="1h")
        assert len(looking.queue("mail").peek()) == 2
        writer.close()
    assert beside(path) == ["jobs.db", "jobs.db-shm", "jobs.db-wal"]
    with shardq.connect(f"sqlite:///{path}") as db:
        assert len(db.queue("mail").peek()) == 2
    assert beside(path) == ["jobs.db"]


def test_a_file_that_vanishes_is_unavailable_and_one_that_is_back_is_read(path: Path) -> None:
    with shardq.connect(f"sqlite:///{path}?mode=ro") as db:
        mail = db.queue("mail")
        assert len(mail.peek()) == 1
        away = path.rename(path.with_name("away.db"))
        with pytest.raises(StoreUnavailable, match="cannot be opened: No such file"):
            mail.peek()
        away.rename(path)
        assert len(mail.peek()) == 1


@pytest.mark.parametrize(
    ("file_mode", "directory_mode", "why"),
    [
        (0o444, 0o755, "for this user may not write the file"),
        (0o444, 0o555, "for this user may not write the file"),
        (0o666, 0o555, "for this user may not write its directory"),
    ],
)
def test_what_a_user_may_not_write_can_be_looked_at(
    open_path: Path, file_mode: int, directory_mode: int, why: str
) -> None:
    open_path.chmod(file_mode)
    open_path.parent.chmod(directory_mode)
    told = run_as_another_user(
        """
        with shardq.connect(f"sqlite:///{sys.argv[1]}") as db:
            print([message.text for message in db.queue("mail").peek()])
            print(db.queue("mail").depth().total, db.queue("mail").audit().is_even)
            try:
                db.queue("mail").put("x")
            except StoreRefused as error:
                print(error)
        """,
        open_path,
    ).splitlines()
    assert told == [
        "['waits']",
        "1 True",
        f"sqlite:///{open_path} is open for reading only, {why}; nothing was written.",
    ]
    assert beside(open_path) == ["jobs.db"]


def test_a_user_who_may_not_write_sees_what_one_who_may_writes(open_path: Path) -> None:
    open_path.parent.chmod(0o555 if os.geteuid() == 0 else 0o755)
    script = """
        with shardq.connect(f"sqlite:///{sys.argv[1]}?mode=ro") as db:
            print(len(db.queue("mail").peek()))
    """
    with shardq.connect(f"sqlite:///{open_path}") as db:
        db.queue("mail").put("more", delay="1h")
        assert run_as_another_user(script, open_path) == "2\n"
        db.queue("mail").put("more", delay="1h")
        assert run_as_another_user(script, open_path) == "3\n"


def test_a_log_without_its_index_that_cannot_be_made_says_what_to_do(open_path: Path) -> None:
    copy = open_path.with_name("copy.db")
    with shardq.connect(f"sqlite:///{open_path}") as db:
        db.queue("mail").put("more")
        shutil.copy(open_path, copy)
        shutil.copy(f"{open_path}-wal", f"{copy}-wal")
    copy.chmod(0o444)
    copy.parent.chmod(0o555)
    told = run_as_another_user(
        """
        try:
            shardq.connect(f"sqlite:///{sys.argv[1]}")
        except StoreUnavailable as error:
            print(error)
        """,
        copy,
    )
    assert told == (
        f"sqlite:///{copy} cannot be read: what was written last is in the log beside it, and the "
        f"log's index cannot be made here; copy both to a directory that this user may write.\n"
    )


def test_a_file_that_may_not_be_read_or_made_says_so(open_path: Path) -> None:
    open_path.chmod(0o000)
    open_path.parent.chmod(0o555)
    told = run_as_another_user(
        """
        for path in (sys.argv[1], f"{sys.argv[1]}.new"):
            try:
                shardq.connect(f"sqlite:///{path}")
            except StoreUnavailable as error:
                print(error)
        """,
        open_path,
    ).splitlines()
    assert told == [
        f"sqlite:///{open_path} cannot be read by this user; change its permissions.",
        f"sqlite:///{open_path}.new cannot be written by this user; change its permissions.",
    ]
    open_path.chmod(0o644)


def test_what_is_not_there_or_has_no_tables_is_not_made_for_reading_only(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is not there, and is not made for reading only"):
        shardq.connect(f"sqlite:///{tmp_path}/none.db?mode=ro")
    (tmp_path / "empty.db").touch()
    with pytest.raises(SchemaMissing, match=r"is empty or has an older format, .* `shardq init`"):
        shardq.connect(f"sqlite:///{tmp_path}/empty.db?mode=ro")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty.db"]


def test_a_link_to_a_database_is_looked_at_where_it_lies(path: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "linked.db"
    link.symlink_to(path)
    with shardq.connect(f"sqlite:///{path}") as db:
        db.queue("mail").put("more", delay="1h")
        with shardq.connect(f"sqlite:///{link}?mode=ro") as looking:
            assert len(looking.queue("mail").peek()) == 2
    assert beside(link) == ["linked.db"]


def test_the_url_says_that_it_only_reads_and_a_name_may_hold_anything(tmp_path: Path) -> None:
    store = SqliteStore.from_url(f"sqlite:///{tmp_path}/%25%3f%23 %c3%a9%ff.db")
    store.open()
    store.close()
    reading = SqliteStore.from_url(f"{store.shown}?mode=ro")
    reading.open()
    assert reading.notes(QUEUES, ()) == {}
    assert reading.shown == f"{store.shown}?mode=ro"
    assert SqliteStore.from_url(reading.shown).path == store.path
    reading.close()


@pytest.mark.parametrize(
    "url", ["sqlite://?mode=ro", "sqlite:///jobs.db?mode=rw", "sqlite:///jobs.db?mode="]
)
def test_another_mode_or_one_for_memory_is_refused(url: str) -> None:
    with pytest.raises(BadUrl, match="mode"):
        SqliteStore.from_url(url)


@pytest.mark.parametrize(
    "command",
    [
        "peek mail",
        "queues",
        "observe --once",
        "dead mail",
        "check",
        "audit mail",
        "history mail order-7",
    ],
)
def test_the_commands_that_look_work_on_a_file_for_reading_only(
    shell: Shell, path: Path, command: str
) -> None:
    done = shell.run(*command.split(), url=f"sqlite:///{path}?mode=ro")
    assert done.code == Exit.OK, done
    assert "shardq: " not in done.err
    assert done.out


def test_the_commands_that_write_say_in_one_line_that_it_is_for_reading_only(
    shell: Shell, path: Path
) -> None:
    for command in ("put mail x", "consume mail", "dead mail --redrive", "queues pause mail"):
        said = shell.fails(Exit.STORE_REFUSED, *command.split(), url=f"sqlite:///{path}?mode=ro")
        assert "is open for reading only, as its url asks by mode=ro; nothing was written." in said
