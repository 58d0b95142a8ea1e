"""What Cassandra alone promises, on a real node: births, batches, refusals, the schema, forks."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import uuid
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from cassandra.metadata import KeyspaceMetadata, Metadata
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host
from cassandra.query import BatchStatement, BoundStatement
from store.parts import lease_states

import shardq
from shardq import clock
from shardq.errors import (
    BadUrl,
    SchemaMissing,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)
from shardq.model import formats
from shardq.model.ids import row_ids
from shardq.model.message import SERIAL_MAX, Row
from shardq.model.shard import MINUTE_MS, Position, Shard
from shardq.stores.cassandra import Address, CassandraStore, cells, minutes, schema
from shardq.stores.cassandra import rows as cassandra_rows
from shardq.stores.cassandra.rows import ACROSS_PARTITIONS
from shardq.stores.cassandra.schema import migrations
from shardq.stores.store import NEVER, LeaseState, RowMove, Slice, Tally
from shardq.stores.tables import MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HOUR_US = 3_600_000_000
FOREVER_MS = 1 << 48


@pytest.fixture(scope="module")
def store(cassandra_url: str) -> Iterator[CassandraStore]:
    store = CassandraStore.from_url(cassandra_url)
    store.open(create=True)
    yield store
    store.close()


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def scratch(store: CassandraStore) -> Iterator[str]:
    """The name of a keyspace that does not exist, and is gone after the test."""
    name = f"shardq_{uuid.uuid4().hex[:12]}"
    yield name
    store._session.ask(f"DROP KEYSPACE IF EXISTS {name}")


def make_row(queue: str, n: int = 0, *, born_us: int | None = None, body: bytes = b"x") -> Row:
    now_us = clock.machine_us() if born_us is None else born_us
    due_ms = now_us // 1_000 + n
    return Row(Shard(queue, due_ms // MINUTE_MS, 0), due_ms, row_ids.next(now_us), body)


def read_all(store: CassandraStore, rows: list[Row], *, purpose: str = "read") -> list[Row]:
    minutes = sorted({row.shard.minute for row in rows})
    lanes = sorted({row.shard.lane for row in rows})
    return store.read(
        Slice(rows[0].shard.queue, minutes, lanes, -1, FOREVER_MS, 10_000, purpose=purpose)
    )


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


# Births and deaths ------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_us", [-HOUR_US, 0, HOUR_US])
def test_a_deleted_row_stays_deleted_when_its_insert_is_replayed(
    store: CassandraStore, queue: str, ahead_us: int
) -> None:
    row = make_row(queue, born_us=clock.machine_us() + ahead_us)
    store.insert([row])
    assert read_all(store, [row]) == [row]
    store.delete([row.position])
    store.insert([row])
    store.insert([row, row])
    assert read_all(store, [row]) == []
    assert store.find([row.position]) == []


@pytest.mark.parametrize("ahead_us", [-HOUR_US, 0, HOUR_US])
def test_a_delete_that_overtakes_its_insert_wins(
    store: CassandraStore, queue: str, ahead_us: int
) -> None:
    row = make_row(queue, born_us=clock.machine_us() + ahead_us)
    store.delete([row.position])
    store.insert([row])
    assert store.find([row.position]) == []


def test_an_edit_after_the_delete_brings_nothing_back(store: CassandraStore, queue: str) -> None:
    row = make_row(queue)
    store.insert([row])
    store.delete([row.position])
    store.edit([row._replace(attempt=7, serial=SERIAL_MAX)])
    assert read_all(store, [row]) == []
    assert store.occupied(queue, [row.shard.minute], [0]) == []
    assert list(store.shards(queue)) == []


def test_a_replayed_move_leaves_one_copy(store: CassandraStore, queue: str) -> None:
    old = [make_row(queue, n) for n in range(20)]
    store.insert(old)
    moves = [RowMove(row.position, make_row(queue, n)) for n, row in enumerate(old)]
    store.move(moves)
    store.insert(old)
    store.move(moves)
    assert set(read_all(store, old)) == {move.new for move in moves}


def test_unset_columns_leave_no_tombstones(cassandra_url: str, queue: str) -> None:
    store = CassandraStore.from_url(with_option(cassandra_url, "trace=tombstones"))
    rows = [make_row(queue, n) for n in range(30)]
    rows.append(make_row(queue, 30)._replace(group="g"))
    rows.append(make_row(queue, 31)._replace(since_ms=5))
    store.insert(rows)
    assert len(read_all(store, rows, purpose="live")) == 32
    store.delete(row.position for row in rows)
    assert read_all(store, rows, purpose="dead") == []
    beyond = rows[-1].due_ms
    minutes = sorted({row.shard.minute for row in rows})
    store.read(Slice(queue, minutes, [0], beyond, FOREVER_MS, 100, purpose="cursor"))
    store.close()
    assert store.counters["tombstones:live"] == 0
    assert store.counters["tombstones:dead"] == 32
    assert store.counters["tombstones:cursor"] == 0


def test_a_block_is_read_beside_ended_ones_without_their_tombstones(
    cassandra_url: str, queue: str
) -> None:
    store = CassandraStore.from_url(with_option(cassandra_url, "trace=tombstones"))
    for number in range(300):
        store.note(MEMBERS, (queue,), {f"ended-{number}": "{}"}, 1_000)
    store.note(MEMBERS, (queue,), {"waits": "{}"}, 600_000)
    for _ in range(600):
        if store.notes(MEMBERS, (queue,)) == {"waits": "{}"}:
            break
        clock.SystemClock(0).sleep(0.1)
    before = store.counters["tombstones:registers"]
    assert store.notes(MEMBERS, (queue,), ["ended-7", "waits"]) == {"waits": "{}"}
    by_name = store.counters["tombstones:registers"] - before
    assert store.notes(MEMBERS, (queue,)) == {"waits": "{}"}
    whole = store.counters["tombstones:registers"] - before - by_name
    store.close()
    assert by_name <= 3
    assert whole >= 300


def test_shards_are_found_beside_more_tombstones_than_a_read_may_pass(
    fresh: CassandraStore, queue: str
) -> None:
    now_us = clock.machine_us()
    # The server fails a read at 100,000.
    fresh.delete(
        Position(Shard(queue, minute, 0), minute * MINUTE_MS, row_ids.next(now_us))
        for minute in range(60)
        for _ in range(2_500)
    )
    live = [make_row(queue, n * MINUTE_MS) for n in range(5)]
    fresh.insert(live)
    assert set(fresh.shards(queue)) == {row.shard for row in live}


@pytest.fixture
def fresh(cassandra_url: str, scratch: str) -> Iterator[CassandraStore]:
    """A store with tables of its own, for what others would have to read past."""
    made = CassandraStore.from_url(in_keyspace(cassandra_url, scratch))
    made.open(create=True)
    yield made
    made.close()


@pytest.fixture(params=["in one millisecond", "over a minute"])
def worn(request: pytest.FixtureRequest, fresh: CassandraStore, queue: str) -> list[Row]:
    """The rows of a shard with more deleted rows than a read may pass: one amid them, one after."""
    now_us = clock.machine_us()
    minute = now_us // 1_000 // MINUTE_MS + 1
    shard, due_ms = Shard(queue, minute, 0), minute * MINUTE_MS
    step_ms = 0 if request.param == "in one millisecond" else 1
    count = 130_000
    positions = [
        Position(shard, due_ms + step_ms * n // 3, row_ids.next(now_us + n * 100))
        for n in range(count)
    ]
    fresh.delete(positions[: count // 2] + positions[count // 2 + 1 :])
    amid = Row(*positions[count // 2], b"amid")
    last_ms = positions[-1].due_ms
    after = [Row(shard, last_ms, row_ids.next(now_us + count * 100), b"after") for _ in range(3)]
    fresh.insert([amid, *after])
    return [amid, *after]


def test_rows_are_found_among_more_deleted_ones_than_a_read_may_pass(
    fresh: CassandraStore, queue: str, worn: list[Row]
) -> None:
    shard = worn[0].shard
    end_ms = (shard.minute + 1) * MINUTE_MS - 1
    whole = Slice(queue, [shard.minute], [0], shard.minute * MINUTE_MS - 1, end_ms, 10)
    assert fresh.read(whole) == worn
    assert fresh.read(whole._replace(limit=2)) == worn[:2]
    rest = whole._replace(after_ms=worn[0].due_ms, after_id=worn[0].id)
    assert fresh.read(rest) == worn[1:]
    near = [shard.minute, shard.minute + 1]
    assert fresh.count(whole._replace(minutes=near, lanes=[0, 1])) == {shard: Tally(4, 0)}
    assert fresh.occupied(queue, near, [0, 1]) == [shard]
    assert list(fresh.shards(queue)) == [shard]
    assert fresh.read(whole, whole._replace(lanes=[1], limit=1)) == worn


@pytest.mark.parametrize("body_bytes", [0, 200, 3_000])
def test_inserts_and_deletes_stay_below_the_servers_warnings(
    store: CassandraStore, queue: str, body_bytes: int
) -> None:
    rows = [make_row(queue, n * MINUTE_MS, body=bytes(body_bytes)) for n in range(64)]
    rows += [make_row(queue, n, body=bytes(body_bytes)) for n in range(200)]
    sent = 0
    for statement in [*store._inserts(rows, set()), *store._deletes(row.position for row in rows)]:
        future = store._session.connect().execute_async(statement)
        future.result()
        assert not future.warnings
        sent += 1
    assert sent >= 2 * 64 / ACROSS_PARTITIONS


def test_lease_verbs_do_not_read_what_was_settled(
    store: CassandraStore, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    # The server warns where one read meets more than a thousand tombstones.
    shard = Shard(queue, 1, 0)
    rows = [make_row(queue)._replace(shard=shard, id=row_ids.next(n)) for n in range(1_100)]
    store.insert(rows)
    store.delete(row.position for row in rows)
    with caplog.at_level("WARNING", logger="cassandra"):
        store.take({shard: None}, lock="mine", holder="me", window=5, ttl_ms=20_000)
        assert store.renew({shard: "mine"}, 20_000) == {shard}
        assert lease_states(store, [shard]) == {shard: LeaseState("mine", "me", 5)}
        store.release({shard: "mine"})
    assert caplog.text == ""


def test_rows_of_many_shards_are_batched_by_replica(
    store: CassandraStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = three_nodes(store.address.keyspace)
    rows = [make_row(queue, n * MINUTE_MS) for n in range(90)]
    live = store._session._connected()
    with monkeypatch.context() as patch:
        patch.setattr(live, "cluster", SimpleNamespace(metadata=ring))
        batches = list(store._inserts(rows, set()))
    replicas = [
        {
            ring.get_replicas(store.address.keyspace, cells.routing_key(key_of(values)))[0]
            for values in values_of(batch)
        }
        for batch in batches
    ]
    assert all(len(nodes) == 1 for nodes in replicas)
    assert len(set.union(*replicas)) == 3
    assert len(batches) <= 90 / ACROSS_PARTITIONS + 3


def test_a_note_that_was_not_acknowledged_is_written_again(
    store: CassandraStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, to = make_row(queue), make_row(queue, HOUR_US // 1_000)
    place = {row.shard: lambda: store.insert([row]), to.shard: move_of(store, row, to)}
    for shard, write in place.items():
        with monkeypatch.context() as patch:
            patch.setattr(store._session, "write", failing)
            with pytest.raises(StoreTimeout):
                write()
        assert shard not in store.indexed(queue, range(NEVER))
        write()
        assert shard in store.indexed(queue, range(NEVER))


def move_of(store: CassandraStore, row: Row, to: Row) -> Callable[[], object]:
    return lambda: store.move([RowMove(row.position, to)])


def failing(statements: Iterable[object], **_named: object) -> None:
    """A write that is sent, and of which nothing arrives."""
    assert list(statements)
    raise StoreTimeout("no answer")


def test_a_process_remembers_so_many_notes_and_writes_the_others_again(
    store: CassandraStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (minutes, cassandra_rows):
        monkeypatch.setattr(module, "NOTED_MAX", 50)
    rows = [make_row(queue, n * MINUTE_MS) for n in range(1_000)]
    for n in range(0, 1_000, 125):
        store.insert(rows[n : n + 125])
    assert len(store._minutes._noted) + len(store._minutes._noted_before) <= 2 * (50 + 125)
    store.mend_index(gone=[rows[0].shard])
    store.insert([make_row(queue)])
    assert len(set(store.indexed(queue, range(NEVER)))) == 1_000


def values_of(statement: BatchStatement | BoundStatement) -> list[list[bytes]]:
    if isinstance(statement, BatchStatement):
        return [values for _, _, values in statement._statements_and_parameters]
    return [statement.values]


def key_of(values: list[bytes]) -> tuple[bytes, ...]:
    """The partition of a row, or of a note of its shard, by what is sent."""
    is_note = len(values) == 4
    return (values[2],) if is_note else tuple(values[:3])


def three_nodes(keyspace: str) -> Metadata:
    """The driver's own map of a ring of three nodes."""
    ring = Metadata()
    owners = {}
    for n in range(3):
        node = Host(f"10.0.0.{n}", SimpleConvictionPolicy, host_id=uuid.uuid4())
        node.set_location_info("eu", "r1")
        ring.add_or_return_host(node)
        owners[node] = [str(-(1 << 63) + n * ((1 << 64) // 3) + 1)]
    ring.keyspaces[keyspace] = KeyspaceMetadata(
        keyspace, True, "NetworkTopologyStrategy", {"eu": "2"}
    )
    ring.rebuild_token_map("Murmur3Partitioner", owners)
    return ring


# Errors -----------------------------------------------------------------------------------------


def test_what_the_server_will_never_take_is_refused_for_good(
    store: CassandraStore, queue: str
) -> None:
    row = make_row(queue)
    with pytest.raises(StoreRefused):
        store.insert([row._replace(id=b"no timeuuid")])


def test_a_cluster_that_is_down_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    store = CassandraStore.from_url(f"cassandra://user:secret@127.0.0.1:{port}/jobs?timeout=1s")
    with pytest.raises(StoreUnavailable, match=rf"cassandra://127\.0\.0\.1:{port}/jobs") as caught:
        store.open()
    assert "secret" not in str(caught.value)
    store.close()


def test_a_server_that_speaks_an_older_protocol_is_refused_for_good() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_in_protocol_4, args=(server,), daemon=True).start()
        port = server.getsockname()[1]
        store = CassandraStore.from_url(f"cassandra://127.0.0.1:{port}/jobs")
        with pytest.raises(StoreRefused, match=r"shardq needs Cassandra 4\.1 or newer"):
            store.open()
        store.close()


def answer_in_protocol_4(server: socket.socket) -> None:
    """Refuse each request as a server does that speaks protocol 4 at the most."""
    text = b"Invalid or unsupported protocol version (5); supported versions are (3/v3, 4/v4)"
    body = struct.pack(">iH", 0x000A, len(text)) + text
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as asked:
                _, _, stream, _, size = struct.unpack(">BBhBi", asked.read(9))
                asked.read(size)
                connection.sendall(struct.pack(">BBhBi", 0x84, 0, stream, 0, len(body)) + body)


def test_a_host_that_has_no_address_is_named() -> None:
    store = CassandraStore.from_url("cassandra://no-such-host.invalid/jobs?timeout=1s")
    with pytest.raises(StoreUnavailable, match=r"no-such-host\.invalid"):
        store.open()


def test_a_data_centre_that_is_not_there_is_told_with_those_that_are(cassandra_url: str) -> None:
    store = CassandraStore.from_url(with_option(cassandra_url, "dc=nowhere"))
    with pytest.raises(BadUrl, match="no data centre 'nowhere'; there are "):
        store.open()


def test_a_missing_keyspace_is_told_with_what_to_do(cassandra_url: str, scratch: str) -> None:
    store = CassandraStore.from_url(in_keyspace(cassandra_url, scratch))
    with pytest.raises(SchemaMissing, match="shardq init"):
        store.open()
    store.close()


def test_a_keyspace_of_others_is_left_alone(
    cassandra_url: str, scratch: str, store: CassandraStore
) -> None:
    make_keyspace(store, scratch)
    store._session.ask(f"CREATE TABLE {scratch}.users (name text PRIMARY KEY)")
    other = CassandraStore.from_url(in_keyspace(cassandra_url, scratch))
    for verb in (partial(other.open, create=True), other.open):
        with pytest.raises(SchemaMissing, match="not shardq's"):
            verb()
    other.close()
    tables = store._session.ask(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (scratch,)
    )
    assert tables == [("users",)]


def in_keyspace(url: str, keyspace: str) -> str:
    return re.sub(r"(://[^/?]+)(/[^?]*)?", rf"\1/{keyspace}", url)


def make_keyspace(store: CassandraStore, name: str) -> None:
    replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
    store._session.ask(f"CREATE KEYSPACE {name} WITH replication = {replication}")


# The schema -------------------------------------------------------------------------------------


def test_the_schema_is_printed_without_a_connection() -> None:
    text = CassandraStore.schema_text(Address(hosts=("db",), keyspace="jobs", dc="eu"))
    assert "CREATE KEYSPACE IF NOT EXISTS jobs" in text
    assert "'eu': 3" in text
    for table in schema.TABLES:
        assert f"CREATE TABLE IF NOT EXISTS {table} (" in text
    assert "gc_grace_seconds = 10800" in text
    assert CassandraStore.schema_text().startswith("CREATE KEYSPACE IF NOT EXISTS shardq ")


def test_a_row_with_nothing_but_its_body_is_written_by_the_short_statement() -> None:
    bare = make_row("mail")
    rich = [bare._replace(**{name: "x"}) for name in ("headers", "group", "claim", "key")]
    writes = cassandra_rows._insert_writes(bare.shard, [bare, *rich])
    assert [text for text, _ in writes] == [
        cassandra_rows._INSERT_PLAIN,
        *[cassandra_rows._INSERT_FULL] * len(rich),
    ]


def test_a_cassandra_4_is_asked_for_no_unified_compaction() -> None:
    for migration in migrations():
        for statement in migration.statements():
            assert "Unified" not in statement.replace(schema._UNIFIED, schema._LEVELED)


def test_every_column_has_a_comment() -> None:
    for migration in migrations():
        for line in migration.text.splitlines():
            if re.match(r'    [a-z"_]+ (text|int|bigint|blob|timestamp|timeuuid)\b', line):
                assert re.search(r" -- \S", line), line


def test_each_file_of_cql_is_a_table_or_a_migration_up_to_the_format() -> None:
    folder = Path(__file__).parents[1] / "cql"
    made = {path.stem for path in folder.glob("*.cql") if not path.stem[0].isdigit()}
    assert made == {*schema.TABLES}
    numbers = [migration.number for migration in migrations()]
    assert numbers == sorted({formats.BASE, *numbers})
    assert numbers[-1] <= formats.FORMAT


def test_the_ledger_goes_day_by_day(store: CassandraStore) -> None:
    ((compaction, ttl),) = store._session.ask(
        "SELECT compaction, default_time_to_live FROM system_schema.tables "
        "WHERE keyspace_name = %s AND table_name = 'history'",
        (store.address.keyspace,),
    )
    assert compaction["class"].endswith("TimeWindowCompactionStrategy")
    assert (compaction["compaction_window_unit"], ttl) == ("DAYS", 0)


def test_messages_are_leveled_and_keep_tombstones_for_three_hours(store: CassandraStore) -> None:
    ((compaction, grace, flush, ttl),) = store._session.ask(
        "SELECT compaction, gc_grace_seconds, memtable_flush_period_in_ms, default_time_to_live "
        "FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 'messages'",
        (store.address.keyspace,),
    )
    leveled = compaction.get("scaling_parameters") == "L10"
    assert leveled or compaction["class"].endswith("LeveledCompactionStrategy")
    assert (grace, flush, ttl) == (10_800, 3_600_000, 0)


def test_the_record_of_one_message_is_one_read_however_many_lanes(
    cassandra_url: str, queue: str
) -> None:
    with shardq.connect(cassandra_url) as db:
        mail = db.queue(queue, lanes=32, history="1d")
        message = mail.put("x", delay="1h")
        counters = db._home.store.counters
        before = counters["reads:ledger"]
        assert [record.id for record in mail.history(message.id)] == [message.id]
        assert counters["reads:ledger"] - before == 1


def test_a_first_read_of_group_lanes_is_few_requests_however_many_lanes(
    cassandra_url: str, queue: str
) -> None:
    with shardq.connect(cassandra_url) as db:
        mail = db.queue(queue, lanes=1)
        mail.put("x", group="g")
        counters = db._home.store.counters
        before = counters["reads:catch-up"]
        [message] = mail.receive(wait="10s")
        mail.ack(message)
        # Three minutes of 64 group lanes, 25 at once, and those of two plain lanes.
        assert counters["reads:catch-up"] - before <= 40


# Processes --------------------------------------------------------------------------------------


def test_a_forked_child_makes_its_own_connections(store: CassandraStore, queue: str) -> None:
    mine, childs = make_row(queue), make_row(queue, 1)
    store.insert([mine])
    with warnings.catch_warnings():
        # Python 3.12 warns of any fork beside threads; that it works with ours is the point.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            store.insert([childs])
            status = 0 if store.find([mine.position]) == [mine] else 2
        finally:
            os._exit(status)  # an exception must not run the rest of the suite a second time
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.find([childs.position]) == [childs]
