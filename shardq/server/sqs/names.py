"""The queues of SQS clients: a url, an ARN or a name leads to a queue of shardq.

```
 url, name ──► account, region, name ──► endpoint (a record, cached for 3 s) ──► queue
```

Queues of the server's own account and region have their plain names in shardq, so workers in Python
and SQS clients share them. A queue that Python has made gets its endpoint as soon as SQS asks for
it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardq.errors import UnknownQueue
from shardq.model import names
from shardq.model.settings import Settings
from shardq.records.register import stored_record
from shardq.server.endpoints import Endpoint, EndpointAddress, Endpoints
from shardq.server.sqs.errors import NoQueue, invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.inspection.depth import Depth
    from shardq.server.hub import ServedQueue
    from shardq.server.site import Site

_CACHED_US = 3_000_000
"""Changes of one server reach the others within 5 s, as those of a queue's settings do."""
_MAKING_MS = 60_000
_DEPTH_CACHED_US = 1_000_000
_ENDPOINTS_MAX = 10_000
_DELAY_S_MAX = 900
_RETENTION_S_MAX = 1_209_600
FIFO = ".fifo"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo")
_ACCOUNT = re.compile(r"[0-9]{12}")
_QUEUE_CHARS = 100
_MADE = re.compile(r"sqs\.([0-9]{12})\.([a-z0-9-]{1,40})\.([A-Za-z0-9_-]{1,80}(?:\.fifo)?)")
"""The name in shardq of a queue of another account or region."""
_HASHED = re.compile(r"sqs\.[0-9]{12}\.[0-9a-f]{32}")
"""The name of such a queue whose own name is long, or `dead`."""


@dataclass(slots=True)
class SqsQueue:
    """A queue that SQS clients use.

    Attributes:
        address: Its account, region and name.
        endpoint: Its record, as it was read last.
        served: The queue.
        until_us: When the record is to be reread, microseconds since boot.
        is_asked: True if a request asked for it since its record was read.
    """

    address: EndpointAddress
    endpoint: Endpoint
    served: ServedQueue
    until_us: int
    is_asked: bool = field(default=False, init=False)
    _depth: Depth | None = field(default=None, init=False)
    _depth_until_us: int = field(default=0, init=False)

    @property
    def is_fifo(self) -> bool:
        """True if it is a FIFO queue."""
        return self.address.name.endswith(FIFO)

    def changed(self) -> None:
        """Note that this process has changed how many messages there are."""
        self._depth = None

    async def depth(self, now_us: int) -> Depth:
        """How many messages there are; changes of other processes are seen within a second."""
        if self._depth is None or now_us >= self._depth_until_us:
            self._depth = depth = await self.served.queue.depth()
            self._depth_until_us = now_us + _DEPTH_CACHED_US
            return depth
        return self._depth


class Directory:
    """Finds the queues of SQS clients. One event loop uses it.

    Args:
        site: The site that answers requests.
        on_read: Called with the directory and a queue whose record was read anew.

    Attributes:
        site: The site that answers requests.
        endpoints: The records.
        movers: Id of a move task -> the task of asyncio that carries it out in this server.
    """

    def __init__(self, site: Site, on_read: Callable[[Directory, SqsQueue], None]) -> None:
        self.site = site
        self._on_read = on_read
        self.endpoints = Endpoints(site.connection._home.store)
        self.movers: dict[str, asyncio.Task[None]] = {}
        self._opened: dict[EndpointAddress, SqsQueue] = {}
        self._hashed: dict[str, EndpointAddress | None] = {}
        self._turn = asyncio.Lock()

    async def find(self, address: EndpointAddress) -> SqsQueue:
        """A queue.

        Raises:
            SqsRefusal: If there is none.
        """
        found = self._opened.get(address)
        now_us = self.site.clock.boot_us()
        if found is not None:
            found.is_asked = True
            if now_us < found.until_us:
                return found
            async with self._turn:
                # Another request may have read it meanwhile.
                if now_us >= found.until_us:
                    await self._reread(found)
            if now_us < found.until_us and self._opened.get(address) is found:
                return found
        endpoint = await self.site.threads.call(lambda: self._endpoint(address))
        if endpoint is None:
            self.forget(address)
            raise NoQueue()
        opened = await self.open(address, endpoint)
        self._on_read(self, opened)
        return opened

    async def _reread(self, first: SqsQueue) -> None:
        """Reread by one read the records of a queue and of others in use that expire soon.

        A record that is gone, damaged, or of a queue made anew is left to the next request for it.
        """
        account, region, _ = first.address
        until_us = self.site.clock.boot_us() + _CACHED_US
        wanted = {
            one.address.name: (one, one.endpoint)
            for one in self._opened.values()
            if one.is_asked
            and one.until_us <= until_us - _CACHED_US // 2
            and one.address[:2] == (account, region)
        }
        found = await self.site.threads.call(lambda: self.endpoints.some(account, region, wanted))
        for name, endpoint in found.items():
            one, before = wanted[name]
            # A request may have changed it since the read began.
            is_same = one.endpoint is before and before.made_ms == endpoint.made_ms
            is_kept = self._opened.get(one.address) is one and not one.served.settings.dropped
            if is_same and is_kept:
                one.endpoint, one.until_us, one.is_asked = endpoint, until_us, False
                self._on_read(self, one)

    async def open(self, address: EndpointAddress, endpoint: Endpoint) -> SqsQueue:
        """Keep an endpoint that was read or written just now, with its queue.

        Raises:
            SqsRefusal: If its queue was dropped.
        """
        found = self._opened.get(address)
        until_us = self.site.clock.boot_us() + _CACHED_US
        if found is not None and found.endpoint.made_ms == endpoint.made_ms:
            found.endpoint, found.until_us = endpoint, until_us
            if not found.served.settings.dropped:
                return found
        self.forget(address)
        try:
            served = await self.site.served.queue(endpoint.queue)
        except UnknownQueue as error:
            await self.site.threads.call(lambda: self._remove_old(address, endpoint))
            raise NoQueue() from error
        if len(self._opened) >= _ENDPOINTS_MAX:
            self._opened.clear()
        made = self._opened[address] = SqsQueue(address, endpoint, served, until_us)
        if _HASHED.fullmatch(endpoint.queue):
            self._hashed[endpoint.queue] = address
        return made

    def _remove_old(self, address: EndpointAddress, endpoint: Endpoint) -> None:
        """Remove the endpoint of a dropped queue, but not the endpoint of a queue being made."""
        store, name = self.site.connection._home.store, endpoint.queue
        record = stored_record(store, name)
        dropped_ms = 0
        if record is not None:
            dropped_ms = Settings.from_json(record.settings, name).purged_before_us // 1_000
        # A queue is made right after its endpoint, or never if its server died in between.
        if max(dropped_ms, self.site.clock.now_ms() - _MAKING_MS) > endpoint.made_ms:
            self.endpoints.remove(address, endpoint.made_ms)

    async def change(
        self, opened: SqsQueue, step: Callable[[Endpoint], Endpoint | None]
    ) -> Endpoint:
        """Change a queue's endpoint by compare-and-set; returns it as it is stored now.

        Raises:
            SqsRefusal: If the queue does not exist any more, or `step` refuses.
        """
        changed = await self.site.threads.call(lambda: self.endpoints.change(opened.address, step))
        if changed is None:
            self.forget(opened.address)
            raise NoQueue()
        opened.endpoint = changed
        return changed

    def forget(self, address: EndpointAddress) -> None:
        """Forget a queue that does not exist any more, or was made anew."""
        found = self._opened.pop(address, None)
        if found is not None:
            self.site.served.forget(found.served.name)

    async def all(self, account: str, region: str) -> dict[str, Endpoint | None]:
        """Name -> endpoint of all queues, sorted; None if no SQS client asked for the queue yet."""

        def read() -> dict[str, Endpoint | None]:
            found: dict[str, Endpoint | None] = dict(self.endpoints.all(account, region))
            if self._is_own(account, region):
                made = self.site.connection.queues()
                for name in made:
                    if is_name(name):
                        found.setdefault(name, None)
            return dict(sorted(found.items()))

        return await self.site.threads.call(read)

    def queue_of(self, address: EndpointAddress) -> str:
        """The name in shardq of a queue that is to be made.

        >>> Directory.queue_of.__name__
        'queue_of'
        """
        account, region, name = address
        if self._is_own(account, region) and names.is_queue_name(name):
            return name
        made = f"sqs.{account}.{region}.{name}"
        # A queue `dead` would be the dead-letter queue of the name before its last dot.
        if len(made) > _QUEUE_CHARS or names.is_dead_queue(made):
            made = f"sqs.{account}.{hashlib.sha256(made.encode()).hexdigest()[:32]}"
        return made

    async def learn(self, queues: Iterable[str], near: EndpointAddress) -> None:
        """Find, for `arn_of`, the addresses of queues with hashed names in shardq.

        Args:
            queues: The names. The store is read once for new ones.
            near: A queue of the same account and region.

        Raises:
            StoreError: If the store cannot be read.
        """
        new = {name for name in queues if _HASHED.fullmatch(name)} - self._hashed.keys()
        if not new:
            return
        account, region, _ = near
        found = await self.site.threads.call(lambda: self.endpoints.all(account, region))
        there = {one.queue: near._replace(name=name) for name, one in found.items()}
        self._hashed.update({name: there.get(name) for name in new})

    def arn_of(self, queue: str, near: EndpointAddress) -> str | None:
        """The ARN of a queue by its name in shardq; None if it has none.

        A hashed name has none before `learn` has found its address.

        Args:
            queue: Its name.
            near: A queue of the same account and region.
        """
        if is_name(queue):
            return near._replace(name=queue).arn
        found = _MADE.fullmatch(queue)
        if found is not None:
            return EndpointAddress(found[1], found[2], found[3]).arn
        hashed = self._hashed.get(queue)
        return None if hashed is None else hashed.arn

    def _is_own(self, account: str, region: str) -> bool:
        options = self.site.options
        return (account, region) == (options.account, options.region)

    def _endpoint(self, address: EndpointAddress) -> Endpoint | None:
        found = self.endpoints.read(address)
        account, region, name = address
        if found is not None or not self._is_own(account, region):
            return found
        if not (is_name(name) and names.is_queue_name(name)):
            return None
        try:
            settings = self.site.connection.queue(name, create=False).settings
        except UnknownQueue:
            return None
        now_ms = self.site.clock.now_ms()
        made = Endpoint(
            queue=name,
            made_ms=now_ms,
            changed_ms=now_ms,
            attributes={
                "DelaySeconds": str(min(settings.delay_ms // 1_000, _DELAY_S_MAX)),
                "MessageRetentionPeriod": str(
                    min(settings.retention_ms // 1_000 or _RETENTION_S_MAX, _RETENTION_S_MAX)
                ),
            },
        )
        return self.endpoints.make(address, made)


def is_name(name: str) -> bool:
    """True if a text can be the name of a queue of SQS."""
    return (_FIFO_NAME if name.endswith(FIFO) else _NAME).fullmatch(name) is not None


def is_account(text: str) -> bool:
    """True if a text can be the id of an account."""
    return _ACCOUNT.fullmatch(text) is not None


def check_name(name: str, *, is_fifo: bool) -> None:
    """Refuse a name that a new queue cannot have.

    Raises:
        SqsRefusal: If it has other characters, or ends in `.fifo` without being a FIFO queue's.
    """
    if is_fifo and not _FIFO_NAME.fullmatch(name):
        raise invalid(
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or "
            "underscores, must end with .fifo suffix and be 1 to 80 in length."
        )
    if not is_fifo and not _NAME.fullmatch(name):
        raise invalid(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )


def address_of(url: str, account: str, region: str) -> EndpointAddress:
    """The address of a queue's url or bare name.

    The host does not matter: containers and proxies know the server under other names.

    Args:
        url: The url or name as the client has it.
        account: The account of a bare name.
        region: The region of the request.

    Raises:
        SqsRefusal: If it cannot be a queue's url.

    >>> address_of("http://sqs:9324/000000000000/mail", "1" * 12, "eu-west-1")
    EndpointAddress(account='000000000000', region='eu-west-1', name='mail')
    """
    _, scheme, rest = url.rpartition("://")
    if not scheme:
        if is_name(url):
            return EndpointAddress(account, region, url)
        raise NoQueue()
    parts = rest.split("/")
    if len(parts) < 2 or not is_name(parts[-1]):
        raise NoQueue()
    owner = parts[-2] if len(parts) > 2 and is_account(parts[-2]) else account
    return EndpointAddress(owner, region, parts[-1])
