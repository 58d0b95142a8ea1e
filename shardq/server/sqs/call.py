"""One call of an action: its caller, account and region, and the queues that it names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardq.server.endpoints import EndpointAddress
from shardq.server.sqs import policy
from shardq.server.sqs.errors import NoQueue, SqsRefusal, wrong
from shardq.server.sqs.names import address_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shardq.server.access import Caller
    from shardq.server.grants import Level
    from shardq.server.site import Site
    from shardq.server.sqs.names import Directory, SqsQueue
    from shardq.server.web import Request


@dataclass(slots=True)
class ActionCall:
    """A call of an action.

    Attributes:
        request: The request.
        site: The site that answers it.
        directory: Finds queues.
        action: The name of the action.
        level: The level of access that it needs.
        account: The caller's account.
        region: The region of the request.
        caller: The caller, with the rights of its key.
        about: The name of the queue that the call is about.
        on_unsent: Called if the client was gone before its answer.
        is_large: True if the answer takes long to write, so that a thread does.
    """

    request: Request
    site: Site
    directory: Directory
    action: str
    level: Level
    account: str
    region: str
    caller: Caller
    about: str = ""
    on_unsent: Callable[[], Awaitable[object]] | None = None
    is_large: bool = False

    async def queue(self, url: str) -> SqsQueue:
        """The queue that a url, or a bare name, stands for.

        Raises:
            SqsRefusal: If there is none, or the caller may not do this with it.
        """
        return await self.opened(address_of(url, self.account, self.region))

    async def queue_of_arn(self, arn: str, parameter: str) -> SqsQueue:
        """The queue of an ARN.

        Raises:
            SqsRefusal: If there is none, or the caller may not do this with it.
        """
        address = EndpointAddress.of_arn(arn)
        if address is None:
            raise wrong(arn, parameter, "Not a valid ARN of a queue.")
        if address.region != self.region:
            raise SqsRefusal(
                "ResourceNotFoundException",
                "The resource that you specified for the SourceArn parameter doesn't exist.",
            )
        try:
            return await self.opened(address)
        except NoQueue as error:
            raise SqsRefusal(
                "ResourceNotFoundException",
                f"The resource that you specified for the {parameter} parameter doesn't exist.",
            ) from error

    async def opened(self, address: EndpointAddress) -> SqsQueue:
        """The queue at an address.

        A caller that may not use the queue gets the same answer if there is none.

        Raises:
            NoQueue: If there is none.
            SqsRefusal: If the caller may not do this with it.
        """
        try:
            opened = await self.directory.find(address)
        except NoQueue:
            self.check(address)
            raise
        self.check(address, opened.endpoint.attributes.get("Policy", ""))
        return opened

    def check(self, address: EndpointAddress, text: str = "") -> None:
        """Refuse a caller that may not do this.

        Args:
            address: The queue's.
            text: Its policy; empty without one.

        Raises:
            SqsRefusal: If the caller's key or the policy does not allow it.
        """
        self.about = address.name
        if self.caller.via == "open":
            return
        # A batch needs what each of its entries does.
        action = self.action.removesuffix("Batch")
        decision = self._decision(action, address, text) if text else None
        is_shared = decision is True and action in policy.SHARED
        if decision is False or not (is_shared or address.account == self.account):
            raise SqsRefusal(
                "AccessDeniedException",
                f"Access to the resource {address.name} is denied.",
            )
        self.caller.check(self.level, address.name)

    def _decision(self, action: str, address: EndpointAddress, text: str) -> bool | None:
        """The decision of a stored policy; None without one.

        A policy that cannot be read allows nothing, but the queue's account may replace it.
        """
        try:
            stored = policy.read(text)
        except SqsRefusal:
            if address.account != self.account:
                return False
            if action == "SetQueueAttributes":
                return None
            raise
        asked = policy.AskedAccess(self.account, action, address.arn, self.request.client)
        return policy.decide(stored, asked)

    def check_also(self, opened: SqsQueue, action: str, level: Level) -> None:
        """Refuse a caller that may not make another action with a queue, too.

        Args:
            opened: The queue.
            action: The other action.
            level: The level that it needs.

        Raises:
            SqsRefusal: If the caller's key or the policy does not allow it.
        """
        text = opened.endpoint.attributes.get("Policy", "")
        self.also(action, level).check(opened.address, text)

    def also(self, action: str, level: Level) -> ActionCall:
        """The same call, for another action."""
        return replace(self, action=action, level=level)
