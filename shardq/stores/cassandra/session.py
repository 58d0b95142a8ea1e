"""One connection to a cluster: profiles, prepared statements, pipelined requests.

`rows.py`, `leases.py` and `registers.py` have the statements; `failures.py` translates errors.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cassandra import ConsistencyLevel, UnresolvableContactPoints
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    RetryPolicy,
    TokenAwarePolicy,
)
from cassandra.query import (
    BatchStatement,
    BatchType,
    BoundStatement,
    TraceUnavailable,
    dict_factory,
    tuple_factory,
)

from shardq import locks
from shardq.clock import SystemClock
from shardq.errors import (
    BadUrl,
    SchemaError,
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)
from shardq.stores.cassandra.failures import DRIVER_ERRORS, store_error
from shardq.stores.cassandra.inherited import leave
from shardq.stores.cassandra.named import named_nodes
from shardq.stores.cassandra.nodes import NodeWatch, many_centres, refuse_old
from shardq.stores.cassandra.slow import SlowLast, SlowNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cassandra.policies import LoadBalancingPolicy, SpeculativeExecutionPolicy

    from shardq.stores.cassandra.address import Address

log = logging.getLogger(__name__)

WINDOW = 24
"""Requests of one call in flight: enough to keep a node busy, few enough to bound memory."""
FETCH_ROWS = 5_000
"""Rows of a page."""

ROWS: Final = EXEC_PROFILE_DEFAULT
LWT: Final = "lwt"
LWT_AGAIN: Final = "lwt again"
SERIAL: Final = "serial"

_SERIAL_OF = {
    "local_quorum": ConsistencyLevel.LOCAL_SERIAL,
    "quorum": ConsistencyLevel.SERIAL,
    "all": ConsistencyLevel.SERIAL,
}
Write = tuple[str, list[Any]]
"""A statement's text and its serialised values."""
_TRACED = re.compile(r"Read \d+ live rows.*?(\d+) tombstone")
_TRACE_SECONDS = 5.0
_LWT_SECONDS = 3.0
"""Timeout of an LWT, so short that a renewal can be repeated before its lease ends."""
_ELSEWHERE_SECONDS = 0.5
_AWAY_US = 30_000_000
"""A node that only restarts is back within this time, and the driver has found it."""
_AGAIN_US = 10_000_000
_SAID_US = 60_000_000
_HEARTBEAT_SECONDS = 5.0
_HEARTBEAT_TIMEOUT_SECONDS = 3.0
"""The driver's own two values, 30 s each, would send a frozen node requests for a minute."""


def profiles(address: Address, nodes: SlowNodes) -> dict[object, ExecutionProfile]:
    """Consistency, retries and timeouts of all requests.

    `ROWS` is for plain reads and writes, `SERIAL` for reads of values written by LWT. `LWT` is for
    conditional writes, which the driver must never repeat by itself. All three go to a partition's
    first replica, so that LWTs of a shard don't contend. `LWT_AGAIN` is for conditional writes of
    unknown outcome, and goes round the nodes, because the first replica may be frozen.

    Args:
        address: The keyspace's address.
        nodes: The slow nodes, which are asked last.
    """
    level = getattr(ConsistencyLevel, address.consistency.upper())
    serial = _SERIAL_OF[address.consistency]

    def profile(
        consistency: int,
        retries: RetryPolicy,
        factory: Any,
        *,
        balance: LoadBalancingPolicy | None = None,
        seconds: float = address.seconds,
        again: SpeculativeExecutionPolicy | None = None,
    ) -> ExecutionProfile:
        nearest = DCAwareRoundRobinPolicy(address.dc or "")
        return ExecutionProfile(
            load_balancing_policy=SlowLast(
                balance or TokenAwarePolicy(nearest, shuffle_replicas=False), nodes
            ),
            speculative_execution_policy=again,
            retry_policy=retries,
            consistency_level=consistency,
            serial_consistency_level=serial,
            request_timeout=seconds,
            row_factory=factory,
        )

    # The driver does not notice a frozen node: after this pause a second node is asked too.
    elsewhere = ConstantSpeculativeExecutionPolicy(_ELSEWHERE_SECONDS, 1)
    # An LWT of unknown outcome must be repeated within seconds.
    lwt_seconds = min(address.seconds, _LWT_SECONDS)
    lwt = partial(profile, level, FallthroughRetryPolicy(), dict_factory, seconds=lwt_seconds)
    return {
        ROWS: profile(level, RetryPolicy(), tuple_factory, again=elsewhere),
        LWT: lwt(),
        LWT_AGAIN: lwt(balance=DCAwareRoundRobinPolicy(address.dc or "")),
        SERIAL: profile(serial, RetryPolicy(), tuple_factory, again=elsewhere),
    }


@dataclass(slots=True)
class _Live:
    """The driver's objects, which exist once in a process."""

    cluster: Any
    session: Any
    nodes: NodeWatch
    prepared: dict[str, Any] = field(default_factory=dict)


class Session:
    """A connection that is made when first used, and made again after a fork.

    Args:
        address: The keyspace's address.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.counters: Counter[str] = Counter()
        self._lock = locks.new()
        self._driver = locks.Door()
        self._live: _Live | None = None
        self._has_warned = False
        self._clock = SystemClock(0, corrected=False)
        self._slow = SlowNodes(self._clock)
        locks.in_child(self, Session._forget)

    # Connecting -----------------------------------------------------------------------------------

    def connect(self) -> Any:
        """The driver's session.

        Raises:
            StoreUnavailable: If no node answers; the text names the hosts.
            StoreRefused: If the login or the protocol is refused.
        """
        return self._connected().session

    def close(self) -> None:
        """End all connections. Idempotent; the next use connects again."""
        locks.refuse_within(self._lock, self._driver)
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            self._driver.through(live.cluster.shutdown)

    def _forget(self) -> None:
        """Leave the copied connections to the parent; the child connects when it needs to."""
        live, self._live = self._live, None
        if live is not None:
            leave(live.cluster, live.session)

    @property
    def cluster(self) -> Any:
        """The driver's cluster, connected."""
        return self._connected().cluster

    def _connected(self) -> _Live:
        live = self._live
        if live is not None:
            return live if live.nodes.since_us is None else self._connected_anew(live)
        locks.refuse_within(self._lock)
        with self._lock:
            if self._live is None:
                self._live = self._connect()
            return self._live

    def _connected_anew(self, live: _Live) -> _Live:
        """Connect from the url again if no node has been up for long.

        One thread tries; requests of others fail in the driver meanwhile.

        Returns:
            The new connection; the old one if no new one was made.
        """
        nodes, now_us = live.nodes, self._clock.boot_us()
        away_us = now_us - (nodes.since_us or now_us)
        if away_us < _AWAY_US or now_us - nodes.tried_us < _AGAIN_US:
            return live
        locks.refuse_within(self._lock, self._driver)
        if not locks.is_free(self._lock):
            return live
        with self._lock:
            if self._live is not live or nodes.since_us is None:
                return self._live or live
            nodes.tried_us = now_us
            try:
                made = self._connect()
            except (StoreError, BadUrl) as error:
                if not nodes.said_us or now_us - nodes.said_us >= _SAID_US:
                    nodes.said_us = now_us
                    why = str(error).removesuffix(".")
                    log.warning("no node for %d s; trying the url again: %s", away_us // 10**6, why)
                # The caller's own request fails too, with an error that says what to do.
                return live
            finally:
                nodes.tried_us = self._clock.boot_us()
            self._live = made
        log.warning("connected anew to %s, after %d s", self.address.shown, away_us // 10**6)
        self._driver.through(live.cluster.shutdown)
        return made

    def _connect(self) -> _Live:
        address = self.address
        _quiet_driver()
        hosts: list[Any] = list(address.hosts)
        nodes = None
        if address.tls != "off":
            hosts, nodes = named_nodes(address)
        try:
            if not hosts:
                raise UnresolvableContactPoints({})
            cluster = Cluster(
                hosts,
                endpoint_factory=nodes,
                port=address.port,
                protocol_version=5,
                compression="lz4",
                auth_provider=_login(address),
                ssl_context=_tls(address),
                execution_profiles=profiles(address, self._slow),
                connect_timeout=min(address.seconds, 5.0),
                control_connection_timeout=min(address.seconds, 5.0),
                # The driver sends in pieces of 4 KiB. Without this the kernel delays the last piece
                # of a request by 40 ms, until the pieces before it are acknowledged.
                sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
                # If all nodes prepared it, each new statement would wait for a frozen node.
                prepare_on_all_hosts=False,
                idle_heartbeat_interval=_HEARTBEAT_SECONDS,
                idle_heartbeat_timeout=_HEARTBEAT_TIMEOUT_SECONDS,
                reconnection_policy=ExponentialReconnectionPolicy(0.25, 5.0, max_attempts=None),
            )
        except DRIVER_ERRORS as error:
            unknown = ", ".join(address.hosts)
            raise StoreUnavailable(
                f"{address.shown} cannot be reached: no address is known for {unknown}."
            ) from error
        try:
            session = cluster.connect()
        except DRIVER_ERRORS as error:
            found = {host.datacenter for host in cluster.metadata.all_hosts()} - {None}
            cluster.shutdown()
            if address.dc is not None and found and address.dc not in found:
                raise BadUrl(
                    f"{address.shown} has no data centre {address.dc!r}; "
                    f"there are {', '.join(sorted(found))}."
                ) from error
            raise store_error(error, place=address.shown, write=False) from error
        self._judge(cluster)
        # Servers set the write time of a statement that has none, because their clocks agree.
        session.use_client_timestamp = False
        session.default_fetch_size = FETCH_ROWS
        return _Live(cluster, session, NodeWatch(cluster, self._clock))

    def _judge(self, cluster: Any) -> None:
        """Refuse a cluster that is too old; warn once if the url has to name a data centre."""
        nodes = self._driver.through(cluster.metadata.all_hosts)
        try:
            refuse_old(self.address, nodes)
        except StoreRefused:
            cluster.shutdown()
            raise
        warning = many_centres(self.address, nodes)
        if warning is not None and not self._has_warned:
            self._has_warned = True
            log.warning(warning)

    # Statements -----------------------------------------------------------------------------------

    def prepared(self, cql: str) -> Any:
        """A prepared statement, prepared once; `{}` in it stands for the keyspace."""
        live = self._connected()
        found = live.prepared.get(cql)
        if found is None:
            try:
                found = self._driver.through(
                    live.session.prepare, cql.format(self.address.keyspace)
                )
            except DRIVER_ERRORS as error:
                raise store_error(error, place=self.address.shown, write=False) from error
            # A write at the server's time could, if sent twice, undo a write made in between.
            found.is_idempotent = cql.startswith("SELECT") or "USING TIMESTAMP" in cql
            live.prepared[cql] = found
        return found

    def bound(self, cql: str, values: list[Any]) -> BoundStatement:
        """A statement with serialised values; the driver's `bind` would cost 10 us a row."""
        statement = BoundStatement(self.prepared(cql))
        statement.values = values
        statement.raw_values = ()  # `str` would show them, and they may be a message's body
        return statement

    def bundle(self, writes: Sequence[Write], kind: BatchType = BatchType.UNLOGGED) -> Any:
        """One request for all writes, sent to a replica of the first write's partition."""
        if len(writes) == 1:
            return self.bound(*writes[0])
        batch = BatchStatement(kind)
        batch.is_idempotent = True
        shapes: dict[str, BoundStatement] = {}
        for cql, values in writes:
            # One statement object a text: `batch.add` copies the values and forgets the object.
            statement = shapes.get(cql)
            if statement is None:
                statement = shapes[cql] = self.bound(cql, values)
            else:
                statement.values = values
            batch.add(statement)
        return batch

    def replica_of(self, routing_key: bytes) -> object:
        """The node that has a partition's first copy; None if there is only one node."""
        metadata = self._connected().cluster.metadata
        if len(self._driver.through(metadata.all_hosts)) < 2:
            return None
        replicas = self._driver.through(metadata.get_replicas, self.address.keyspace, routing_key)
        return replicas[0] if replicas else None

    # Requests -------------------------------------------------------------------------------------

    def write(self, statements: Iterable[Any], *, window: int = WINDOW) -> None:
        """Send plain writes, pipelined, and wait until each is acknowledged.

        After an error it sends nothing more, and waits for the requests in flight.

        Args:
            statements: The writes; at a None the writes before it are acknowledged first.
            window: The most requests in flight.

        Raises:
            StoreRefused, StoreTimeout, StoreUnavailable: The worst error, in this order;
                `StoreUnavailable` only if nothing was written.
        """
        session = self.connect()
        flying: deque[Any] = deque()
        failures: list[StoreError | SchemaError] = []
        sent = 0
        try:
            for statement in statements:
                while flying and (statement is None or len(flying) >= window):
                    self._land(flying.popleft(), failures)
                if failures:
                    break
                if statement is None:
                    continue
                flying.append(self._send(session, statement, ROWS))
                sent += 1
        finally:
            while flying:
                self._land(flying.popleft(), failures)
            self.count("batches", sent)
        if failures:
            worst = _worst(failures)
            if isinstance(worst, StoreUnavailable) and len(failures) < sent:
                raise StoreTimeout(f"a part is written, the rest is not: {worst}") from worst
            raise worst

    def read(
        self, statements: Iterable[BoundStatement], purpose: str, *, profile: object = ROWS
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Send reads, pipelined; yields the rows of each page, in the order of the statements."""
        session = self.connect()

        def send(statement: BoundStatement, paging_state: bytes | None = None) -> Any:
            trace = self.address.trace
            return self._send(session, statement, profile, trace=trace, paging_state=paging_state)

        flying: deque[tuple[Any, Callable[[bytes], Any]]] = deque()
        for statement in statements:
            flying.append((send(statement), partial(send, statement)))
            if len(flying) >= WINDOW:
                yield from self._pages(*flying.popleft(), purpose)
        while flying:
            yield from self._pages(*flying.popleft(), purpose)

    def conditional(
        self, statements: Sequence[Any], *, again: bool = False
    ) -> list[list[dict[str, Any]] | StoreError]:
        """Send LWTs, pipelined, and wait for all.

        Args:
            again: True if they repeat LWTs of unknown outcome, so that other nodes are asked.

        Returns:
            For each statement the rows of its answer: `[applied]` and, if refused, the cells of its
            conditions, for each row that exists. `StoreTimeout` if the outcome is unknown,
            `StoreUnavailable` if it was not sent.

        Raises:
            StoreRefused: If a statement is refused for good.
        """
        session = self.connect()
        self.count("lwt", len(statements))
        answers: list[list[dict[str, Any]] | StoreError] = []
        flying: deque[Any] = deque()
        for statement in statements:
            if len(flying) >= WINDOW:
                answers.append(self._answer(flying.popleft()))
            flying.append(self._send(session, statement, LWT_AGAIN if again else LWT))
        answers.extend(self._answer(future) for future in flying)
        return answers

    def ask(
        self,
        statement: Any,
        values: Any = None,
        *,
        host: Any = None,
        seconds: float | None = None,
    ) -> list[Any]:
        """Send one request that is not counted, for schema and clocks.

        Args:
            host: The only node to ask; None: any.
            seconds: How long to wait; None: as long as for other requests.
        """
        session = self.connect()
        timeout = self.address.seconds if seconds is None else seconds
        try:
            return list(
                self._driver.through(session.execute, statement, values, host=host, timeout=timeout)
            )
        except DRIVER_ERRORS as error:
            raise store_error(error, place=self.address.shown, write=False) from error

    def live_hosts(self) -> list[Any]:
        """The nodes of the data centre in use that are up."""
        dc = self.address.dc
        hosts = self._driver.through(self.cluster.metadata.all_hosts)
        return [host for host in hosts if host.is_up and dc in (None, host.datacenter)]

    def host(self, node: str) -> Any:
        """The node whose endpoint, as text, is `node`.

        Raises:
            StoreUnavailable: If the node is down or gone.
        """
        for host in self.live_hosts():
            if str(host.endpoint) == node:
                return host
        raise StoreUnavailable(f"node {node} of {self.address.shown} is down or gone.")

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self.counters[name] += amount

    def _send(
        self,
        session: Any,
        statement: Any,
        profile: object,
        *,
        trace: bool = False,
        paging_state: bytes | None = None,
    ) -> Any:
        # The driver reports all its errors through the future.
        return self._driver.through(
            session.execute_async,
            statement,
            execution_profile=profile,
            trace=trace,
            paging_state=paging_state,
        )

    def _result(self, future: Any) -> Any:
        """The result of a request; nodes that kept it waiting are asked last from now on."""
        try:
            result = future.result()
        except DRIVER_ERRORS as error:
            self._slow.note(future, error)
            raise
        self._slow.note(future)
        return result

    def _land(self, future: Any, failures: list[StoreError | SchemaError]) -> None:
        try:
            self._result(future)
        except DRIVER_ERRORS as error:
            failure = store_error(error, place=self.address.shown, write=True)
            failure.__cause__ = error
            failures.append(failure)

    def _answer(self, future: Any) -> list[dict[str, Any]] | StoreError:
        try:
            answer: list[dict[str, Any]] = list(self._result(future))
        except DRIVER_ERRORS as error:
            failure = store_error(error, place=self.address.shown, write=True, conditional=True)
            failure.__cause__ = error
            if isinstance(failure, (StoreTimeout, StoreUnavailable)):
                return failure
            raise failure from error
        return answer

    def _pages(
        self, future: Any, next_page: Callable[[bytes], Any], purpose: str
    ) -> Iterator[list[tuple[Any, ...]]]:
        while future is not None:
            try:
                result = self._result(future)
            except DRIVER_ERRORS as error:
                raise store_error(error, place=self.address.shown, write=False) from error
            rows = result.current_rows
            with self._lock:
                counters = self.counters
                counters["reads"] += 1
                counters["reads:" + purpose] += 1
                counters["rows_read"] += len(rows)
                counters["rows_read:" + purpose] += len(rows)
            if self.address.trace:
                self._count_tombstones(future, purpose)
            # The next page is read while the caller works on this one. It has a future of its own:
            # two nodes that were asked may both answer, and the driver (3.30) would take the second
            # answer for the next page.
            more = result.paging_state
            future = next_page(more) if more else None
            yield rows

    def _count_tombstones(self, future: Any, purpose: str) -> None:
        try:
            trace = future.get_query_trace(max_wait=_TRACE_SECONDS)
        except TraceUnavailable:
            self.count("untraced:" + purpose)
            return
        found = 0
        for event in trace.events:
            match = _TRACED.search(event.description)
            if match:
                found += int(match[1])
        self.count("tombstones:" + purpose, found)


def _worst(failures: list[StoreError | SchemaError]) -> StoreError | SchemaError:
    ranks = (SchemaError, StoreRefused, StoreTimeout, StoreUnavailable)
    return min(
        failures, key=lambda f: next(i for i, kind in enumerate(ranks) if isinstance(f, kind))
    )


def _quiet_driver() -> None:
    # The driver logs every lost connection with a traceback; our errors say what matters.
    logger = logging.getLogger("cassandra")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def _login(address: Address) -> PlainTextAuthProvider | None:
    if address.user is None:
        return None
    return PlainTextAuthProvider(address.user, address.password)


def _tls(address: Address) -> ssl.SSLContext | None:
    if address.tls == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca)
        if address.cert is not None:
            context.load_cert_chain(address.cert)
    except (ssl.SSLError, OSError) as error:
        raise BadUrl(f"a certificate file of the cassandra url cannot be used: {error}.") from error
    context.check_hostname = address.tls == "on"
    return context
