"""The queues that SQS clients know: an account, a region and a name lead to a queue of shardq.

An endpoint has what SQS has and shardq has not: attributes as they were set, tags, and the tasks
that move messages out of the queue. `shardq/server/sqs/` defines their meaning.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from shardq.errors import StoreCorrupt, StoreUnavailable
from shardq.stores.tables import ENDPOINTS, Change, EndpointRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.stores.store import Store

_TRIES = 20
_ARN = re.compile(r"arn:aws:sqs:([a-z0-9-]{1,40}):([0-9]{12}):([A-Za-z0-9._-]{1,85})")
TASKS_MAX: Final = 10
"""How many move tasks an endpoint keeps: the newest."""


class MoveTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that moves the messages of a queue into another one.

    Attributes:
        id: The task's name, which is random.
        target: The ARN of the queue that takes the messages; empty if each goes back to its source.
        rate: The most messages a second; 0 for as many as possible.
        status: `RUNNING`, `COMPLETED`, `CANCELLING`, `CANCELLED` or `FAILED`.
        begun_ms: When the task was begun, epoch milliseconds.
        at_ms: When its mover last wrote this record: another server continues a task whose mover is
            silent.
        moved: How many messages were moved so far.
        total: How many messages are to be moved, as counted when the task began.
        reason: Why the task failed; empty if it has not.
    """

    id: str
    target: str = ""
    rate: int = 0
    status: str = "RUNNING"
    begun_ms: int = 0
    at_ms: int = 0
    moved: int = 0
    total: int = 0
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """True if the task still moves messages."""
        return self.status in {"RUNNING", "CANCELLING"}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queue as SQS clients know it.

    Attributes:
        queue: The name of the queue in shardq.
        made_ms: When the endpoint was made, epoch milliseconds.
        changed_ms: When the attributes were last changed.
        purged_ms: When the queue was last purged; 0 if never.
        attributes: SQS's attributes as they were set; an attribute that was not set has its
            default.
        tags: The queue's tags.
        tasks: The newest move tasks that have the queue as their source, newest first.
    """

    queue: str
    made_ms: int
    changed_ms: int
    purged_ms: int = 0
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    tasks: tuple[MoveTask, ...] = ()


_decoder = msgspec.json.Decoder(Endpoint)
_encoder = msgspec.json.Encoder()


class EndpointAddress(NamedTuple):
    """The name of a queue for SQS clients.

    Attributes:
        account: 12 digits.
        region: A region of AWS's, or another one.
        name: The name that clients use.
    """

    account: str
    region: str
    name: str

    @property
    def arn(self) -> str:
        """The ARN of the queue."""
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"

    @classmethod
    def of_arn(cls, arn: str) -> EndpointAddress | None:
        """The address in an ARN of a queue; None if the text is no such ARN.

        >>> EndpointAddress.of_arn("arn:aws:sqs:us-east-1:000000000000:mail").name
        'mail'
        """
        found = _ARN.fullmatch(arn)
        return None if found is None else cls(found[2], found[1], found[3])


class Endpoints:
    """The endpoints of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, address: EndpointAddress) -> Endpoint | None:
        """The endpoint at an address; None without one, which a SERIAL read confirms.

        Raises:
            StoreCorrupt: If the endpoint's record is damaged.
        """
        # A plain read may miss the newest change: if it finds nothing, read once more.
        found = self._store.notes(ENDPOINTS, address[:2], [address.name]).get(address.name)
        if found is None or found.info is None:
            found = self._record(address)
        return None if found is None else _endpoint(address, found)

    def some(self, account: str, region: str, names: Iterable[str]) -> dict[str, Endpoint]:
        """Name -> the endpoint, for those that one plain read finds and that are not damaged."""
        found = {}
        for name, record in self._store.notes(ENDPOINTS, (account, region), names).items():
            if record.info is not None:
                with suppress(StoreCorrupt):
                    found[name] = _endpoint(EndpointAddress(account, region, name), record)
        return found

    def all(self, account: str, region: str) -> dict[str, Endpoint]:
        """Name -> the endpoint, for all of an account and region, by name. Costs one read."""
        found = self._store.notes(ENDPOINTS, (account, region))
        return {
            name: _endpoint(EndpointAddress(account, region, name), record)
            for name, record in sorted(found.items())
            if record.info is not None
        }

    def make(self, address: EndpointAddress, endpoint: Endpoint) -> Endpoint:
        """Make an endpoint; returns it, or the endpoint that its address has already."""
        while True:
            record = EndpointRecord(_text(endpoint), 1)
            if self._write(address, record, None):
                return endpoint
            found = self._record(address)
            if found is not None:
                return _endpoint(address, found)

    def change(
        self, address: EndpointAddress, step: Callable[[Endpoint], Endpoint | None]
    ) -> Endpoint | None:
        """Change an endpoint by compare-and-set.

        Args:
            address: The endpoint's address.
            step: Given the stored endpoint, returns the endpoint to store; None for no change.

        Returns:
            The endpoint as it is stored now; None if there is none.

        Raises:
            StoreUnavailable: If other processes keep changing the endpoint.
        """
        for _ in range(_TRIES):
            found = self._record(address)
            if found is None:
                return None
            before = _endpoint(address, found)
            wanted = step(before)
            if wanted is None or wanted == before:
                return before
            if self._write(address, EndpointRecord(_text(wanted), found.version + 1), found):
                return wanted
        raise StoreUnavailable(
            f"the endpoint of queue {address.name!r} could not be changed: other processes kept "
            f"changing it; try again."
        )

    def remove(self, address: EndpointAddress, made_ms: int) -> Endpoint | None:
        """Remove an endpoint; returns the endpoint, or None if there is none.

        Args:
            address: The endpoint's address.
            made_ms: When the endpoint was made: an endpoint made at the address since then stays.
        """
        for _ in range(_TRIES):
            found = self._record(address)
            if found is None or _endpoint(address, found).made_ms != made_ms:
                return None
            seen = {"version": found.version}
            change = Change(address[:2], (address.name,), seen, None)
            if not self._store.write_records(ENDPOINTS, [change]):
                return _endpoint(address, found)
        raise StoreUnavailable(
            f"the endpoint of queue {address.name!r} could not be removed: other processes kept "
            f"changing it; try again."
        )

    def _record(self, address: EndpointAddress) -> EndpointRecord | None:
        return self._store.records(ENDPOINTS, address[:2], [address.name]).get(address.name)

    def _write(
        self, address: EndpointAddress, record: EndpointRecord, before: EndpointRecord | None
    ) -> bool:
        seen = {"version": None if before is None else before.version}
        change = Change(address[:2], (address.name,), seen, record._asdict())
        return not self._store.write_records(ENDPOINTS, [change])


def _text(endpoint: Endpoint) -> str:
    return _encoder.encode(endpoint).decode()


def _endpoint(address: EndpointAddress, record: EndpointRecord) -> Endpoint:
    try:
        return _decoder.decode(record.info)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(
            f"the endpoint of queue {address.name!r} is damaged: {error}; delete its row of table "
            f"endpoints, or restore the store from a copy."
        ) from error
