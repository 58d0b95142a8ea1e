"""Unknown outcomes, made for real: a proxy loses an answer after the node has worked.

The answer is dropped, or the connection is cut with it; the store must find out what happened.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from store.parts import lease_states

from shardq import Connection, clock
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.ids import row_ids
from shardq.model.message import Row
from shardq.model.shard import MINUTE_MS, Shard
from shardq.stores.cassandra import CassandraStore, session
from shardq.stores.cassandra.rows import MOVE_BYTES
from shardq.stores.store import LeaseState, RowMove, Slice
from shardq.stores.tables import QUEUES, STATS, Change, QueueRecord
from shardq.testing.faults import Faults, faulty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOREVER_MS = 1 << 48
FIRST = QueueRecord("{}", b"s" * 32, 1)


@pytest.fixture(scope="module")
def store(cassandra_url: str) -> Iterator[CassandraStore]:
    store = CassandraStore.from_url(cassandra_url)
    store.open(create=True)
    yield store
    store.close()


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:16]}"


def make_row(queue: str, n: int = 0) -> Row:
    now_us = clock.machine_us()
    due_ms = now_us // 1_000 + n
    return Row(Shard(queue, due_ms // MINUTE_MS, 0), due_ms, row_ids.next(now_us), b"x")


def of_queue(name: str, seen: int | None, record: QueueRecord) -> Change:
    return Change((), (name,), {"version": seen}, record._asdict())


class Proxy:
    """Passes bytes between clients and a node; loses one answer when told to."""

    def __init__(self, host: str, port: int, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._node = (host, port)
        self._armed: str | None = None
        self._then: Callable[[], object] | None = None
        self._open: list[socket.socket] = []
        self.lost = threading.Event()
        self._listener = socket.create_server(at)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_answer(self, *, cut: bool, then: Callable[[], object] | None = None) -> None:
        """Let the next request through, drop its answer and call `then`; `cut` the connection."""
        self.lost.clear()
        self._then = then
        self._armed = "cut" if cut else "drop"

    def close(self) -> None:
        for each in [self._listener, *self._open]:
            self._shut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            node = socket.create_connection(self._node)
            self._open += [client, node]
            fates: list[str] = []
            for pump, ends in ((self._requests, (client, node)), (self._answers, (node, client))):
                threading.Thread(target=pump, args=(*ends, fates), daemon=True).start()

    def _requests(self, client: socket.socket, node: socket.socket, fates: list[str]) -> None:
        for data in self._chunks(client, node):
            if self._armed is not None:
                fates.append(self._armed)
                self._armed = None
            self._send(node, data)

    def _answers(self, node: socket.socket, client: socket.socket, fates: list[str]) -> None:
        for data in self._chunks(node, client):
            if not fates:
                self._send(client, data)
                continue
            fate = fates.pop()
            if self._then is not None:
                self._then()
            self.lost.set()
            if fate == "cut":
                self._shut(client)
                self._shut(node)

    def _chunks(self, source: socket.socket, other: socket.socket) -> Iterator[bytes]:
        while True:
            try:
                data = source.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self._shut(other)
                return
            yield data

    @staticmethod
    def _send(to: socket.socket, data: bytes) -> None:
        try:
            to.sendall(data)
        except OSError:
            Proxy._shut(to)

    @staticmethod
    def _shut(end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@pytest.fixture
def proxy(store: CassandraStore) -> Iterator[Proxy]:
    if len(store.clocks()) > 1:
        pytest.skip("the driver would go round the proxy, to the other nodes")
    proxy = Proxy(store.address.hosts[0], store.address.port)
    yield proxy
    proxy.close()


@pytest.fixture
def shaky(store: CassandraStore, proxy: Proxy, queue: str) -> Iterator[CassandraStore]:
    """A store behind the proxy, its statements prepared, its answers awaited for five seconds."""
    behind = replace(store.address, hosts=("127.0.0.1",), port=proxy.port, timeout_ms=5_000)
    shaky = CassandraStore(behind)
    first = Shard(queue, 0, 0)
    shaky.take({first: None}, lock="l", holder="h", window=1, ttl_ms=120_000)
    shaky.renew({first: "l"}, 120_000)
    shaky.release({first: "l"})
    shaky.insert([make_row(queue)])
    shaky.write_records(QUEUES, [of_queue(f"{queue}-first", None, FIRST)])
    made = [totals(f"{queue}-first", name, None, "1") for name in "ab"]
    shaky.write_records(STATS, made)
    shaky.write_records(STATS, [totals(f"{queue}-first", name, "1", None) for name in "ab"])
    yield shaky
    shaky.close()


class Loss:
    """Loses the next answer when called; `happened` since then."""

    def __init__(self, proxy: Proxy, how: str) -> None:
        self._proxy = proxy
        self._how = how

    def __call__(self, then: Callable[[], object] | None = None) -> None:
        self._proxy.lose_next_answer(cut=self._how == "cut", then=then)

    @property
    def happened(self) -> bool:
        return self._proxy.lost.is_set()


@pytest.fixture(params=[pytest.param("dropped", marks=pytest.mark.nightly), "cut"])
def lose(request: pytest.FixtureRequest, proxy: Proxy) -> Loss:
    """An answer that is dropped takes the store's whole timeout, so most of them are by night."""
    return Loss(proxy, request.param)


either_way = pytest.mark.parametrize("lose", ["dropped", "cut"], indirect=True)


@either_way
def test_a_lease_whose_answer_was_lost_is_known_to_be_ours(
    shaky: CassandraStore, store: CassandraStore, lose: Loss, queue: str
) -> None:
    shard = Shard(queue, 1, 0)
    ours = LeaseState("mine", "me", 5)
    lose()
    state = shaky.take({shard: None}, lock="mine", holder="me", window=5, ttl_ms=120_000)
    assert lose.happened
    assert state == {shard: ours}
    assert lease_states(store, [shard]) == {shard: ours}


def test_renewals_and_releases_whose_answer_was_lost_are_decided(
    shaky: CassandraStore, store: CassandraStore, lose: Loss, queue: str
) -> None:
    shard = Shard(queue, 1, 0)
    shaky.take({shard: None}, lock="mine", holder="me", window=5, ttl_ms=120_000)
    lose()
    assert shaky.renew({shard: "mine"}, 120_000) == {shard}
    assert lose.happened
    lose()
    shaky.release({shard: "mine"})
    assert lose.happened
    assert lease_states(store, [shard]) == {shard: LeaseState()}


def test_a_queue_whose_answer_was_lost_is_known_to_be_written(
    shaky: CassandraStore, store: CassandraStore, lose: Loss, queue: str
) -> None:
    second = QueueRecord('{"a":1}', b"s" * 32, 2)
    lose()
    assert shaky.write_records(QUEUES, [of_queue(queue, None, FIRST)]) == {}
    assert lose.happened
    refused = {((), (queue,)): {"version": 1}}
    assert store.write_records(QUEUES, [of_queue(queue, None, FIRST)]) == refused
    assert store.write_records(QUEUES, [of_queue(queue, 1, second)]) == {}
    assert store.records(QUEUES, (), [queue]) == {queue: second}


def totals(queue: str, member: str, seen: str | None, new: str | None, **more: Any) -> Change:
    return Change(
        (queue,), (7, member), {"totals": seen}, None if new is None else {"totals": new}, **more
    )


def test_records_whose_answer_was_lost_are_known_to_be_written_all(
    shaky: CassandraStore, store: CassandraStore, lose: Loss, queue: str
) -> None:
    made = [totals(queue, name, None, f"{name}1") for name in "ab"]
    lose()
    assert shaky.write_records(STATS, made) == {}
    assert lose.happened
    assert len(store.write_records(STATS, [totals(queue, n, None, f"{n}2") for n in "ab"])) == 2
    lose()
    mixed = [totals(queue, "a", "a1", None), totals(queue, "b", "b1", "b2")]
    assert shaky.write_records(STATS, mixed) == {}
    assert lose.happened
    lose()
    refused = [totals(queue, "a", "a1", "a3"), totals(queue, "b", "b2", "b3")]
    told = shaky.write_records(STATS, refused)
    assert lose.happened
    assert told == {((queue,), (7, "a")): {"totals": None}}
    assert store.records(STATS, (queue,)) == {(7, "b"): "b3"}


def test_a_decisive_change_that_may_have_been_overwritten_is_maybe_applied(
    shaky: CassandraStore, store: CassandraStore, lose: Loss, queue: str
) -> None:
    store.write_records(STATS, [totals(queue, "a", None, "1")])
    lose()
    unsure = totals(queue, "a", None, "2", is_decisive=True)
    with pytest.raises(StoreTimeout, match="may have been changed, and changed again since"):
        shaky.write_records(STATS, [unsure])
    assert lose.happened
    assert shaky.write_records(STATS, [unsure]) == {unsure.place: {"totals": "1"}}


def test_a_removal_of_a_schedule_whose_answer_was_lost_leaves_the_schedule_made_since(
    shaky: CassandraStore, store: CassandraStore, lose: Loss, queue: str
) -> None:
    faults = Faults()
    mail = Connection(faulty(shaky, faults), background=False).queue(queue)
    other = Connection(store, background=False).queue(queue)
    mail.every("1h", b"old", name="crm")
    assert mail.schedules.remove("crm")
    mail.every("1h", b"old", name="crm")
    faults.call(
        "write_records schedules",
        lambda: lose(lambda: other.every("1h", b"new", name="crm")),
        after=False,
    )
    with pytest.raises(StoreTimeout, match="may have been changed, and changed again since"):
        mail.schedules.remove("crm")
    assert lose.happened
    assert other.schedules["crm"].body == b"new"


def test_a_delete_whose_answer_was_lost_is_known_to_be_done(
    shaky: CassandraStore, store: CassandraStore, lose: Loss, queue: str
) -> None:
    store.write_records(STATS, [totals(queue, name, None, "1") for name in "ab"])
    lose()
    assert shaky.write_records(STATS, [totals(queue, name, "1", None) for name in "ab"]) == {}
    assert lose.happened
    assert store.records(STATS, (queue,)) == {}


def test_rows_that_cannot_be_written_after_their_record_are_maybe_written(
    store: CassandraStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_row(queue)

    def refuse(_rows: object) -> None:
        raise StoreUnavailable("not sent")

    monkeypatch.setattr(store, "insert", refuse)
    asked = [totals(queue, "a", None, "a1", insert=(row,))]
    with pytest.raises(StoreTimeout, match=r"records are written.*not sent"):
        store.write_records(STATS, asked)
    monkeypatch.undo()
    assert store.find([row.position]) == []
    assert store.write_records(STATS, asked) == {}
    assert store.find([row.position]) == [row]


@either_way
def test_a_write_whose_answer_was_lost_is_maybe_applied_and_may_be_repeated(
    shaky: CassandraStore, store: CassandraStore, lose: Loss, queue: str
) -> None:
    row = make_row(queue, 1)
    lose()
    with pytest.raises(StoreTimeout, match="may be applied"):
        shaky.insert([row])
    assert lose.happened
    store.insert([row])
    assert store.find([row.position]) == [row]


def test_a_large_move_is_maybe_applied_once_its_new_row_is_written(
    store: CassandraStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_row(queue, 1)._replace(body=bytes(MOVE_BYTES))
    new = old._replace(due_ms=old.due_ms + 1, id=row_ids.next(clock.machine_us()))
    store.insert([old])

    def refuse(_positions: object) -> None:
        raise StoreUnavailable("not sent")

    monkeypatch.setattr(store, "delete", refuse)
    with pytest.raises(StoreTimeout, match=r"new rows are written.*not sent"):
        store.move([RowMove(old.position, new)])
    assert store.find([old.position, new.position]) == [old, new]
    monkeypatch.undo()
    store.move([RowMove(old.position, new)])
    assert store.find([old.position, new.position]) == [new]


def test_a_read_whose_answer_was_lost_can_be_done_again(
    shaky: CassandraStore, proxy: Proxy, queue: str
) -> None:
    wanted = Slice(queue, [1], [0], -1, FOREVER_MS, 10)
    assert shaky.read(wanted) == []
    proxy.lose_next_answer(cut=False)
    with pytest.raises(StoreUnavailable, match="no answer"):
        shaky.read(wanted)
    assert shaky.read(wanted) == []


def test_a_node_that_goes_down_later_is_an_error_of_ours(
    shaky: CassandraStore, proxy: Proxy, queue: str
) -> None:
    proxy.close()
    # The first write may have left before the connection was seen to be broken.
    with pytest.raises((StoreUnavailable, StoreTimeout)):
        shaky.insert([make_row(queue)])
    with pytest.raises(StoreUnavailable):
        shaky.read(Slice(queue, [1], [0], -1, FOREVER_MS, 10))


# Nodes that move ---------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux alone")
def test_nodes_that_come_back_under_other_addresses_are_found_by_the_url(
    store: CassandraStore,
    proxy: Proxy,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    named = {"db.test": "127.0.0.1"}
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *more, **how: resolve(named.get(host, host), *more, **how),
    )
    monkeypatch.setattr(session, "_AWAY_US", 0)
    monkeypatch.setattr(session, "_AGAIN_US", 0)
    moving = CassandraStore(
        replace(store.address, hosts=("db.test",), port=proxy.port, timeout_ms=1_000)
    )
    moving.open()
    first, second = make_row(queue, 1), make_row(queue, 2)
    moving.insert([first])
    proxy.close()
    watch = clock.SystemClock(0, corrected=False)
    until_us = watch.boot_us() + 60_000_000

    def insert_until(found: Callable[[], bool]) -> None:
        while not found() and watch.boot_us() < until_us:
            with contextlib.suppress(StoreUnavailable, StoreTimeout):
                moving.insert([second])
            watch.sleep(0.05)

    insert_until(lambda: "trying the url again" in caplog.text)
    elsewhere = Proxy(store.address.hosts[0], store.address.port, ("127.0.0.2", proxy.port))
    named["db.test"] = "127.0.0.2"
    insert_until(lambda: "connected anew to cassandra://db.test" in caplog.text)
    moving.insert([second])
    assert moving.find([first.position, second.position]) == [first, second]
    assert caplog.text.count("trying the url again") == 1
    moving.close()
    elsewhere.close()
