"""SQLite's tables, their migrations, and the marks by which a file is known as shardq's.

`database.py` has the connections, `store.py` the verbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.errors import SchemaMissing
from shardq.model import formats

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x73687264
"""Kept in the header of the file, in `PRAGMA application_id`: `shrd` in ASCII."""

TABLES: tuple[str, ...] = (
    # Without rowid, a shard's rows lie side by side in the order in which they are read. Rows have
    # the queue's name: numbers instead made the file 7 % smaller and nothing faster.
    """\
CREATE TABLE messages (
    queue    TEXT    NOT NULL,
    minute   INTEGER NOT NULL, -- minute of the due time, in minutes of the queue's length
    lane     INTEGER NOT NULL,
    due      INTEGER NOT NULL, -- when the row next needs attention, epoch milliseconds
    id       BLOB    NOT NULL, -- row id, most significant byte first, so that they sort by birth
    body     BLOB    NOT NULL, -- 0 bytes to 1 MiB
    headers  TEXT,             -- a JSON object of strings
    attempt  INTEGER NOT NULL, -- deliveries begun and recorded; edited in place
    first    BLOB,             -- row id of the first placement in this queue, unless it is this one
    name     TEXT,             -- the message's id, where the user or another queue gave one
    origin   INTEGER,          -- the due first asked for, unless it is this one
    in_group TEXT,             -- the group, where there is one
    claim    TEXT,             -- the member that holds the delivery under way; edited in place
    since    INTEGER,          -- the due from which lateness counts, of a row that another lane
                               -- passed here, unless it is this one
    key      TEXT,             -- generation, ms for which the name is held after the end (or
                               -- nothing), and the name, colons between them
    not_before INTEGER,        -- when it may be handed out, unless as soon as it is due; edited
    error    TEXT,             -- the last error: epoch milliseconds, f or s (failed or snoozed) and
                               -- a text, colons between them; edited in place
    note     TEXT,             -- of a note, no message: minute, due and row id of a row of this
                               -- lane for the owner to reread, colons between them
    received TEXT,             -- when receive first returned it, epoch milliseconds; then :l if its
                               -- receipts last, :n if it has moved since; edited in place
    priority INTEGER NOT NULL DEFAULT 0, -- of a message with a group
    serial   INTEGER NOT NULL DEFAULT 0, -- the number of the last edit; 0 since the insert
    PRIMARY KEY (queue, minute, lane, due, id)
) WITHOUT ROWID""",
    # Leases and members expire by time since boot, which nobody sets. `until_us` counts for a row
    # from another space.
    """\
CREATE TABLE leases (
    queue         TEXT    NOT NULL,
    minute        INTEGER NOT NULL,
    lane          INTEGER NOT NULL,
    lock          TEXT    NOT NULL, -- the token of the lease
    until_us      INTEGER NOT NULL, -- its end by the wall clock, epoch microseconds
    holder        TEXT    NOT NULL, -- the member that leased it last
    window        INTEGER NOT NULL, -- the most rows that the holder may have handed out unrecorded
    space         TEXT,             -- names the clock of the next two columns, time since boot
    from_boot_us  INTEGER,          -- when it was written, less a second; before that: another boot
    until_boot_us INTEGER,          -- the end of the lease; afterwards it is unclean
    ahead_us      INTEGER NOT NULL, -- the most by which the wall clock was ahead of time since boot
                                    -- while the holder, or a member it took over from, had it
    PRIMARY KEY (queue, minute, lane)
) WITHOUT ROWID""",
    """\
CREATE TABLE waiting (
    queue  TEXT    NOT NULL,
    lane   INTEGER NOT NULL, -- a lane for groups; its lease is in leases, minute -1
    minute INTEGER NOT NULL, -- a minute in which rows are left, before the seal or with claims
    due    INTEGER NOT NULL, -- the due of the first of them when listed, epoch milliseconds; before
                             -- the minute: its owner released the lane while claims of it ran
    PRIMARY KEY (queue, lane, minute)
) WITHOUT ROWID""",
    """\
CREATE TABLE lanes (
    queue  TEXT    NOT NULL,
    lane   INTEGER NOT NULL,
    sealed INTEGER NOT NULL, -- the last sealed minute; it never falls
    PRIMARY KEY (queue, lane)
) WITHOUT ROWID""",
    """\
CREATE TABLE queues (
    name     TEXT    NOT NULL PRIMARY KEY,
    settings TEXT    NOT NULL, -- JSON
    secret   BLOB    NOT NULL, -- signs the queue's receipts
    version  INTEGER NOT NULL  -- each change adds one
) WITHOUT ROWID""",
    """\
CREATE TABLE members (
    queue         TEXT    NOT NULL,
    member        TEXT    NOT NULL,
    info          TEXT    NOT NULL, -- JSON
    until_us      INTEGER NOT NULL, -- by the wall clock, epoch microseconds
    space         TEXT,             -- as in leases
    from_boot_us  INTEGER,
    until_boot_us INTEGER,          -- afterwards the member counts as gone
    PRIMARY KEY (queue, member)
) WITHOUT ROWID""",
    """\
CREATE TABLE stats (
    queue  TEXT    NOT NULL,
    minute INTEGER NOT NULL, -- the beginning of the stretch that is totalled
    member TEXT    NOT NULL,
    totals TEXT    NOT NULL, -- JSON
    PRIMARY KEY (queue, minute, member)
) WITHOUT ROWID""",
    # Keyed by message alone: ids sort by entry, so a minute is a range of ids.
    """\
CREATE TABLE history (
    queue    TEXT    NOT NULL,
    id       BLOB    NOT NULL, -- row id of its first placement, most significant byte first
    due      INTEGER,          -- the due first asked for; set by the put
    name     TEXT,             -- the message's id, where the user or another queue gave one
    fate     TEXT,             -- how it ended: acked, dead, cancelled, purged
    ended    INTEGER,          -- when, epoch milliseconds; of several ends the first stands
    attempt  INTEGER,          -- deliveries until the end
    member   TEXT,             -- the member that recorded the end
    task     TEXT,             -- the task of a job; set by the put
    tries    TEXT,             -- JSON: attempts that failed, the last 100, by their number % 100:
                               -- number, end, run in ms, and error, colons between them
    until_ms INTEGER NOT NULL, -- when the row expires, epoch milliseconds
    PRIMARY KEY (queue, id)
) WITHOUT ROWID""",
    """\
CREATE TABLE keys (
    queue    TEXT    NOT NULL, -- the served queue, also for messages in its dead-letter queue
    bucket   INTEGER NOT NULL, -- crc32(key) % 16, as on Cassandra
    key      TEXT    NOT NULL, -- the name
    live     TEXT,             -- the message that has it: first row id and generation; free if held
    state    TEXT,             -- JSON: waiting or begun, and where it was put
    until_us INTEGER,          -- when the row of a held name expires, epoch microseconds
    PRIMARY KEY (queue, bucket, key)
) WITHOUT ROWID""",
    """\
CREATE TABLE places (
    queue   TEXT    NOT NULL,
    bucket  INTEGER NOT NULL,
    key     TEXT    NOT NULL,
    message TEXT    NOT NULL, -- first row id and generation of a message that has moved
    place   TEXT    NOT NULL, -- the position of its row
    born    INTEGER NOT NULL, -- birth of that row, epoch microseconds; it never falls
    PRIMARY KEY (queue, bucket, key, message)
) WITHOUT ROWID""",
    """\
CREATE TABLE results (
    queue     TEXT    NOT NULL, -- the served queue, also for messages that have died
    message   TEXT    NOT NULL, -- the message's id
    state     TEXT    NOT NULL, -- running, retrying, done, failed or expired
    attempt   INTEGER NOT NULL, -- number of the delivery that wrote this
    value     BLOB    NOT NULL, -- the task's result, JSON, to 1 MiB; no bytes: none yet
    error     TEXT    NOT NULL, -- why the attempt failed, to 8,000 characters; empty: it has not
    traceback TEXT    NOT NULL, -- the end of its traceback, likewise
    progress  INTEGER NOT NULL, -- progress in millionths; -1: not reported
    note      TEXT    NOT NULL, -- the job's note on its progress, to 1,000 characters
    entered   INTEGER NOT NULL, -- when the job's put entered the queue, epoch microseconds
    written   INTEGER NOT NULL, -- when, epoch microseconds; it never falls
    until_us  INTEGER,          -- when the row expires, epoch microseconds
    PRIMARY KEY (queue, message)
) WITHOUT ROWID""",
    # Finds expired rows, of which each has a time to live of its own.
    "CREATE INDEX results_until ON results (until_us)",
    """\
CREATE TABLE schedules (
    queue      TEXT    NOT NULL, -- the queue that the schedules put into
    bucket     INTEGER NOT NULL, -- crc32(name) % 16; 16: which buckets commands have changed
    name       TEXT    NOT NULL,
    definition TEXT    NOT NULL, -- JSON: its trigger, its messages and its policies
    state      TEXT    NOT NULL, -- JSON: its generation, and what it has fired
    next       INTEGER,          -- next fire time, epoch milliseconds; unset: it does not fire
    PRIMARY KEY (queue, bucket, name)
) WITHOUT ROWID""",
    """\
CREATE TABLE accounts (
    account TEXT    NOT NULL PRIMARY KEY, -- 12 digits; master: the key of derived secrets
    info    TEXT    NOT NULL, -- JSON
    version INTEGER NOT NULL  -- each change adds one
) WITHOUT ROWID""",
    """\
CREATE TABLE access (
    key     TEXT    NOT NULL PRIMARY KEY, -- the key's id
    account TEXT    NOT NULL, -- the account that it is of
    info    TEXT    NOT NULL, -- JSON: hashes of its secrets, levels, patterns, end, quotas
    version INTEGER NOT NULL  -- each change adds one
) WITHOUT ROWID""",
    """\
CREATE TABLE actions (
    day      INTEGER NOT NULL, -- days since the epoch
    at       BLOB    NOT NULL, -- row id: when, and a tail that no other has
    who      TEXT    NOT NULL, -- a key's id, or a user at a shell
    via      TEXT    NOT NULL, -- the way in: shell, sqs, http
    what     TEXT    NOT NULL, -- the command
    object   TEXT    NOT NULL, -- the thing that was changed: a queue, a message's id
    outcome  TEXT    NOT NULL, -- done, or why not
    until_us INTEGER,          -- when the row expires, epoch microseconds
    PRIMARY KEY (day, at)
) WITHOUT ROWID""",
    # Finds expired rows: none of them is in the partition of a new row.
    "CREATE INDEX actions_until ON actions (until_us)",
    """\
CREATE TABLE endpoints (
    account TEXT    NOT NULL, -- 12 digits
    region  TEXT    NOT NULL,
    name    TEXT    NOT NULL, -- the queue's name for SQS clients
    info    TEXT    NOT NULL, -- JSON: the queue, its attributes, tags and move tasks
    version INTEGER NOT NULL, -- each change adds one
    PRIMARY KEY (account, region, name)
) WITHOUT ROWID""",
    """\
CREATE TABLE sent (
    queue    TEXT    NOT NULL,
    bucket   INTEGER NOT NULL,
    name     TEXT    NOT NULL, -- the name under which a message is put once
    place    TEXT    NOT NULL, -- its id, and where its first row was put
    until_us INTEGER,          -- when the row expires, epoch microseconds
    PRIMARY KEY (queue, bucket, name)
) WITHOUT ROWID""",
    """
CREATE TABLE limits (
    queue  TEXT NOT NULL, -- name of the queue
    name   TEXT NOT NULL, -- the limit: running, or rate; or a stretch of time with a budget
    shares TEXT NOT NULL, -- JSON: member -> its share, its end, and how much it could use
    until_us INTEGER,     -- when the row expires, epoch microseconds
    PRIMARY KEY (queue, name)
) WITHOUT ROWID""",
)
"""The statements that make the tables of format `BASE`."""

MIGRATIONS: dict[int, tuple[str, ...]] = {}
"""Format -> the statements that make it from the format before."""


def _statements(number: int) -> list[str]:
    """The statements that make the newest format from format `number`; 0: an empty database."""
    found = [] if number else [*TABLES]
    for later in range(max(number, formats.BASE) + 1, formats.FORMAT + 1):
        found += MIGRATIONS.get(later, ())
    return found


def schema_text() -> str:
    """The statements that make the newest format, as text for `sqlite3`."""
    made = (f"PRAGMA application_id = {APPLICATION_ID}", *_statements(0))
    return (
        "\n\n".join(f"{one};" for one in (*made, f"PRAGMA user_version = {formats.FORMAT}")) + "\n"
    )


def is_current(connection: sqlite3.Connection, shown: str) -> bool:
    """True if the database has the newest format; False if it is empty, or to be migrated.

    Args:
        connection: A connection in a transaction, because another process may be migrating.
        shown: The database's name for errors.

    Raises:
        SchemaMissing: If it has tables of another program, or from before 0.1.0.
        SchemaNewer: If a newer shardq made it.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION_ID:
        return formats.is_current(number, shown=shown, what="file")
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application or number or tables:
        raise SchemaMissing(
            f"{shown} is a database of another program ({tables} tables and indexes, none of them "
            f"shardq's); name another file."
        )
    return False


def migrate(connection: sqlite3.Connection, shown: str) -> None:
    """Bring an empty or older database to the newest format, in the open transaction.

    It checks the format again, because another process may have migrated since the caller checked.
    """
    if is_current(connection, shown):
        return
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    for statement in _statements(number):
        connection.execute(statement)
    # Pragmas take no parameters; both are integers.
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {formats.FORMAT}")
