"""The url of a keyspace, the profiles and the errors of the driver: nothing here connects."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from cassandra import (
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unavailable,
    WriteTimeout,
    WriteType,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException, ConnectionShutdown
from cassandra.policies import FallthroughRetryPolicy, RoundRobinPolicy, TokenAwarePolicy
from cassandra.protocol import ErrorMessage, OverloadedErrorMessage

from shardq.errors import (
    BadUrl,
    SchemaMissing,
    StoreOverread,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)
from shardq.stores.cassandra import Address, CassandraStore
from shardq.stores.cassandra.address import read_url
from shardq.stores.cassandra.failures import store_error
from shardq.stores.cassandra.nodes import many_centres, refuse_old
from shardq.stores.cassandra.session import (
    LWT,
    LWT_AGAIN,
    ROWS,
    SERIAL,
    Session,
    _Live,
    profiles,
)
from shardq.stores.cassandra.slow import SlowLast, SlowNodes
from shardq.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path


UP: Any = SimpleNamespace(since_us=None)
"""A watch of nodes that are up."""


def test_a_url_with_everything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("")
    monkeypatch.setenv("DB_PASSWORD", "se:cret")
    address = read_url(
        "cassandra://one,two:9043/jobs?dc=eu&user=me&password_env=DB_PASSWORD"
        f"&consistency=quorum&tls=on&ca={authority}&timeout=2500ms&replication=2&trace=tombstones"
    )
    assert address == Address(
        hosts=("one", "two"),
        port=9043,
        keyspace="jobs",
        dc="eu",
        user="me",
        password="se:cret",
        consistency="quorum",
        tls="on",
        ca=str(authority),
        timeout_ms=2_500,
        replication=2,
        trace=True,
    )


def test_a_short_url_takes_the_defaults() -> None:
    address = read_url("cassandra://db")
    assert (address.port, address.keyspace, address.consistency) == (9042, "shardq", "local_quorum")
    assert read_url("cassandra://[::1]:9043/jobs").hosts == ("::1",)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("cassandra://", "host"),
        ("cassandra:///jobs", "host"),
        ("cassandra://one:1,two:2", "one port"),
        ("cassandra://db:0", "port"),
        ("cassandra://db:x", "port"),
        ("cassandra://db/Jobs", "keyspace"),
        ("cassandra://db/jobs;drop", "keyspace"),
        ("cassandra://db?colour=red", "consistency, dc, password"),
        ("cassandra://db?colour", "cannot be read"),
        ("cassandra://db?consistency=one", "local_quorum, quorum, all"),
        ("cassandra://db?tls=yes", "off, on, any-host"),
        ("cassandra://db?tls=on&ca=/nowhere/ca.pem", "no file"),
        (f"cassandra://db?ca={__file__}", "ca= of the cassandra url is for TLS; add tls=on"),
        (f"cassandra://db?cert={__file__}&tls=off", "cert= .* is for TLS; add tls=on"),
        ("cassandra://db?tls_name=db1", "tls_name= .* is for TLS; add tls=on"),
        ("cassandra://db?timeout=soon", "timeout"),
        ("cassandra://db?timeout=1ms", "100ms to 10m"),
        ("cassandra://db?replication=0", "1 to 9"),
        ("cassandra://db?user=me", "password_env"),
        ("cassandra://db?password_env=SHARDQ_NOT_SET&user=me", "not set"),
        ("cassandra://:pw@db", "no user"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(BadUrl, match=hint):
        CassandraStore.from_url(url)


def test_the_password_is_never_shown() -> None:
    store = CassandraStore.from_url("cassandra://me:se%3Acret@db/jobs")
    assert store.address.password == "se:cret"
    for shown in (store.shown, repr(store.address), str(store.address)):
        assert "cret" not in shown
    with pytest.raises(BadUrl) as caught:
        CassandraStore.from_url("cassandra://me:secret@db/Bad-Name")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("consistency", "level", "serial"),
    [
        ("local_quorum", ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.LOCAL_SERIAL),
        ("quorum", ConsistencyLevel.QUORUM, ConsistencyLevel.SERIAL),
        ("all", ConsistencyLevel.ALL, ConsistencyLevel.SERIAL),
    ],
)
def test_profiles_say_consistency_and_retries(consistency: str, level: int, serial: int) -> None:
    address = Address(hosts=("db",), consistency=consistency, timeout_ms=8_000)
    made = profiles(address, SlowNodes(ManualClock()))
    assert {made[name].serial_consistency_level for name in (ROWS, LWT, SERIAL)} == {serial}
    assert made[ROWS].consistency_level == made[LWT].consistency_level == level
    assert made[SERIAL].consistency_level == serial
    assert isinstance(made[LWT].retry_policy, FallthroughRetryPolicy)
    assert made[ROWS].request_timeout == 8.0
    assert made[LWT].request_timeout == 3.0
    pinned = [made[name].load_balancing_policy.child for name in (ROWS, LWT, SERIAL)]
    assert not any(policy.shuffle_replicas for policy in pinned)


def test_a_node_that_stands_still_is_gone_round() -> None:
    made = profiles(Address(hosts=("db",)), SlowNodes(ManualClock()))
    second = {
        name: made[name].speculative_execution_policy.new_plan("shardq", None).next_execution(None)
        for name in (ROWS, SERIAL, LWT, LWT_AGAIN)
    }
    assert second[ROWS] == second[SERIAL] == 0.5
    # The driver sends no LWT twice by itself; ours goes to another node the second time.
    assert second[LWT] == second[LWT_AGAIN] == -1
    assert not isinstance(made[LWT_AGAIN].load_balancing_policy.child, TokenAwarePolicy)
    assert made[LWT_AGAIN].serial_consistency_level == made[LWT].serial_consistency_level


class InOrder(RoundRobinPolicy):
    """The nodes a, b and c, always."""

    def make_query_plan(self, working_keyspace: object = None, query: object = None) -> list[str]:
        return ["a", "b", "c"]


@pytest.mark.parametrize(
    ("asked", "answered", "error", "plan"),
    [
        (["a"], "a", None, "abc"),
        # The second was asked because the first had not answered, and was first.
        (["a", "b"], "b", None, "bca"),
        (["a", "b", "c"], "c", None, "cab"),
        # The first was first all the same, or its late answer is what is left to be seen.
        (["a", "b"], "a", None, "abc"),
        (["a"], None, OperationTimedOut(), "bca"),
        (["a", "b"], None, OperationTimedOut(), "cab"),
        (["a", "b", "c"], None, OperationTimedOut(), "abc"),
        # They answered, and in time: others contend, or too much is asked for.
        (["a"], "a", WriteTimeout("timed out", write_type=WriteType.CAS), "abc"),
        (["a", "b"], "b", ReadTimeout("timed out"), "abc"),
        (["a"], "a", InvalidRequest("no such column"), "abc"),
        ([], None, NoHostAvailable("none", {}), "abc"),
    ],
)
def test_a_node_that_kept_a_request_waiting_is_asked_last_for_a_while(
    asked: list[str], answered: str | None, error: Exception | None, plan: str
) -> None:
    clock = ManualClock()
    nodes = SlowNodes(clock)
    policy = SlowLast(InOrder(), nodes)
    nodes.note(SimpleNamespace(attempted_hosts=asked, coordinator_host=answered), error)
    assert "".join(policy.make_query_plan()) == plan
    clock.sleep(11)
    assert "".join(policy.make_query_plan()) == "abc"


# Errors -------------------------------------------------------------------------------------------

DOWN = NoHostAvailable("none", {"db": ConnectionException("Host has been marked down")})
BROKEN = NoHostAvailable("none", {"db": ConnectionShutdown("connection closed")})
SILENT = OperationTimedOut()
CAS_UNKNOWN = ErrorMessage(0x1700, "CAS operation result is unknown", None)
UNDECIDED = WriteTimeout("timed out", write_type=WriteType.CAS)


@pytest.mark.parametrize(
    ("error", "write", "expected"),
    [
        (DOWN, True, StoreUnavailable),
        (BROKEN, True, StoreTimeout),
        (BROKEN, False, StoreUnavailable),
        (NoHostAvailable("none", {}), True, StoreTimeout),
        (ConnectionShutdown("closed"), True, StoreTimeout),
        (SILENT, True, StoreTimeout),
        (SILENT, False, StoreUnavailable),
        (CAS_UNKNOWN, True, StoreTimeout),
        (UNDECIDED, True, StoreTimeout),
        (ReadTimeout("late"), False, StoreUnavailable),
        (Unavailable("too few replicas"), True, StoreUnavailable),
        (OverloadedErrorMessage(0x1001, "overloaded", None), True, StoreUnavailable),
        (InvalidRequest("too large"), True, StoreRefused),
        (InvalidRequest("unconfigured table messages"), False, SchemaMissing),
    ],
)
def test_an_error_says_whether_the_write_may_be_applied(
    error: Exception, write: bool, expected: type[Exception]
) -> None:
    assert type(store_error(error, place="cassandra://db", write=write)) is expected


def test_a_failed_read_of_a_conditional_write_leaves_it_unknown() -> None:
    error = store_error(ReadTimeout("late"), place="db", write=True, conditional=True)
    assert isinstance(error, StoreTimeout)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_read_of_too_many_tombstones_is_told_from_one_that_failed(code: int) -> None:
    error = store_error(
        ReadFailure("no", error_code_map={"10.0.0.1": code}), place="db", write=False
    )
    assert isinstance(error, StoreUnavailable)
    assert isinstance(error, StoreOverread) == (code == 1)


class AnsweredTwice:
    """A driver's session: each request is answered once more after its answer was taken."""

    def __init__(self, pages: list[list[int]]) -> None:
        self._pages = pages

    def execute_async(self, *_: object, paging_state: bytes | None = None, **__: object) -> Asked:
        return Asked(self._pages, int(paging_state or b"0"))


class Asked:
    """What the driver gives for a request, and for further pages where it is asked for them."""

    attempted_hosts = ("a", "b")
    coordinator_host = "b"

    def __init__(self, pages: list[list[int]], number: int) -> None:
        self.current_rows = pages[number]
        self.has_more_pages = number + 1 < len(pages)
        self.paging_state = b"%d" % (number + 1) if self.has_more_pages else None

    def start_fetching_next_page(self) -> None:
        """The second answer to the last request comes first, and is taken for the next page."""

    def result(self) -> Asked:
        return self


def test_a_page_that_is_answered_twice_is_read_once() -> None:
    session = Session(read_url("cassandra://nowhere/shardq"))
    session._live = _Live(None, AnsweredTwice([[1, 2], [3], [4]]), UP)
    pages = session.read([None], "poll")  # type: ignore[list-item]
    assert list(islice(pages, 10)) == [[1, 2], [3], [4]]


class Answers:
    """A driver's session and what it gives for a write: each write in turn ends as it is told."""

    attempted_hosts = ()
    coordinator_host = None

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = iter(errors)
        self._error: Exception | None = None

    def execute_async(self, *_: object, **__: object) -> Answers:
        return Answers(next(self._errors))

    def result(self) -> None:
        error = next(self._errors)
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ((None, DOWN), StoreTimeout),
        ((DOWN, None), StoreTimeout),
        ((DOWN, DOWN), StoreUnavailable),
        ((Unavailable("too few replicas"),) * 2, StoreUnavailable),
    ],
)
def test_writes_of_which_a_part_is_applied_are_never_called_not_applied(
    answers: tuple[Exception | None, ...], kind: type[Exception]
) -> None:
    session = Session(read_url("cassandra://nowhere/shardq"))
    session._live = _Live(None, Answers(*answers), UP)
    with pytest.raises(kind) as caught:
        session.write(range(len(answers)))
    assert type(caught.value) is kind


def node(number: int, release: str | None = "5.0.5", centre: str | None = "east") -> object:
    return SimpleNamespace(
        endpoint=f"10.0.0.{number}:9042", release_version=release, datacenter=centre
    )


@pytest.mark.parametrize("release", ["4.0.11", "3.11.4", "4.0-beta2"])
def test_a_node_that_is_too_old_is_refused_with_the_least_release(release: str) -> None:
    address = read_url("cassandra://db/jobs")
    with pytest.raises(StoreRefused) as caught:
        refuse_old(address, [node(1), node(2, release)])
    assert str(caught.value) == (
        f"node 10.0.0.2:9042 of cassandra://db:9042/jobs is a Cassandra {release}, and shardq "
        f"needs Cassandra 4.1 or newer; upgrade it."
    )
    refuse_old(address, [node(1), node(2, "4.1.0"), node(3, "6.0-alpha2"), node(4, None)])


def test_several_data_centres_of_which_the_url_names_none_are_a_warning() -> None:
    nodes = [node(1), node(2, centre="west"), node(3, centre=None)]
    warning = many_centres(read_url("cassandra://db/jobs"), nodes)
    assert warning is not None
    assert "has the data centres east, west" in warning
    assert "add dc=east" in warning
    assert many_centres(read_url("cassandra://db/jobs?dc=west"), nodes) is None
    assert many_centres(read_url("cassandra://db/jobs"), [node(1), node(2)]) is None
