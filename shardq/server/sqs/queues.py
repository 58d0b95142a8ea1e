"""Making, finding, listing, changing and deleting queues."""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from shardq.errors import BadSetting
from shardq.model import names
from shardq.records.actions import What
from shardq.server.endpoints import Endpoint, EndpointAddress
from shardq.server.grants import Level
from shardq.server.sqs import attributes, policy, shapes
from shardq.server.sqs.actions import action
from shardq.server.sqs.errors import NoQueue, SqsRefusal, invalid, missing, wrong
from shardq.server.sqs.names import FIFO, check_name, is_account, is_name
from shardq.server.sqs.shapes import QueueAttributes, QueueUrl, QueueUrls, SourceUrls, Tags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.server.sqs.call import ActionCall
    from shardq.server.sqs.names import SqsQueue

_PAGE_MAX = 1_000
_SETTINGS = {"DelaySeconds": "delay", "MessageRetentionPeriod": "retention"}
"""Attribute -> the setting that does it."""
_TAGS_MAX = 50
_ACTIONS_MAX = 7
_PURGE_PAUSE_MS = 60_000
_TAG_KEY_MAX, _TAG_VALUE_MAX = 128, 256


def url_of(call: ActionCall, address: EndpointAddress) -> str:
    """The url of a queue, under the host by which the client has reached the server."""
    request = call.request
    return f"{request.scheme}://{request.host}/{address.account}/{address.name}"


@action("CreateQueue", Level.CREATE, shapes.CreateQueue)
async def create_queue(call: ActionCall, given: shapes.CreateQueue) -> QueueUrl:
    """Make a queue; one that exists with the same attributes is found."""
    asked = given.attributes or {}
    name, is_fifo = given.queue_name, asked.get("FifoQueue") == "true"
    address = EndpointAddress(call.account, call.region, name)
    call.check(address)
    check_name(name, is_fifo=is_fifo)
    wanted = attributes.checked(asked, address, is_new=True)
    tags = given.tags or {}
    _check_tags(tags, name)
    await _check_target(call, address, wanted)
    directory = call.directory
    try:
        found = (await directory.find(address)).endpoint
    except SqsRefusal:
        found = None
    if found is None:
        await _make(call, address, wanted, tags)
    else:
        _check_same(found, address, wanted)
    return QueueUrl(queue_url=url_of(call, address))


def _check_same(found: Endpoint, address: EndpointAddress, wanted: Mapping[str, str]) -> None:
    differing = attributes.difference(found, address, wanted)
    if differing is not None:
        raise SqsRefusal(
            "QueueNameExists",
            "A queue already exists with the same name and a different value for attribute "
            f"{differing}",
        )


async def _make(
    call: ActionCall, address: EndpointAddress, wanted: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    directory, threads = call.directory, call.site.threads
    now_ms = call.site.clock.now_ms()
    made = Endpoint(
        queue=directory.queue_of(address),
        made_ms=now_ms,
        changed_ms=now_ms,
        attributes=attributes.merged({}, wanted),
        tags=dict(tags),
    )
    # The endpoint is made first: a queue without one counts as made by Python.
    stored = await threads.call(lambda: directory.endpoints.make(address, made))
    _check_same(stored, address, wanted)
    settings = _durations(stored) | await _deaths(call, stored, address)
    try:
        served = await call.site.served.queue(stored.queue, create=True, **settings)
    except BadSetting:
        await threads.call(lambda: directory.endpoints.remove(address, stored.made_ms))
        raise
    if address.name.endswith(FIFO):
        # Announced now: otherwise the first message would wait until consumers know of groups.
        await served.call(lambda queue: queue._home.register.use_groups())
    await directory.open(address, stored)
    await call.site.record(call.caller, "sqs", What.CREATE, address.name)


def _durations(endpoint: Endpoint) -> dict[str, timedelta]:
    """The settings in shardq that are durations, by the attributes of a queue."""
    return {
        setting: timedelta(seconds=attributes.number(endpoint, name))
        for name, setting in _SETTINGS.items()
    }


async def _deaths(call: ActionCall, endpoint: Endpoint, address: EndpointAddress) -> dict[str, Any]:
    """The settings in shardq of where and when messages die, by the attributes of a queue."""
    redrive = attributes.redrive(endpoint, address)
    if redrive is None:
        own = names.dead_queue(endpoint.queue)
        return {"attempts": attributes.ATTEMPTS_MAX, "dead": own}
    target = await call.directory.find(redrive.target)
    return {"attempts": redrive.max_receive_count, "dead": target.served.name}


async def _check_target(
    call: ActionCall, address: EndpointAddress, wanted: Mapping[str, str]
) -> None:
    """Refuse a redrive policy whose dead-letter queue does not exist, or does not take its dead."""
    text = wanted.get("RedrivePolicy")
    if not text:
        return
    redrive = attributes.redrive_of(text, address)
    try:
        # Dead messages are put there.
        target = await call.also("SendMessage", Level.PUT).opened(redrive.target)
    except NoQueue as error:
        raise wrong(text, "RedrivePolicy", "Dead letter target does not exist.") from error
    call.about = address.name
    allow = target.endpoint.attributes.get("RedriveAllowPolicy")
    if target.address == address:
        raise wrong(text, "RedrivePolicy", "A queue cannot be its own dead-letter queue.")
    if allow and not attributes.redrive_allow_of(allow).allows(address.arn):
        raise wrong(
            text, "RedrivePolicy", "The dead-letter queue does not allow this queue as its source."
        )


@action("GetQueueUrl", Level.GET, shapes.GetQueueUrl)
async def get_queue_url(call: ActionCall, given: shapes.GetQueueUrl) -> QueueUrl:
    """Find a queue by its name."""
    if not is_name(given.queue_name) or not is_account(given.owner or call.account):
        raise NoQueue()
    address = EndpointAddress(given.owner or call.account, call.region, given.queue_name)
    await call.opened(address)
    return QueueUrl(queue_url=url_of(call, address))


@action("ListQueues", Level.GET, shapes.ListQueues)
async def list_queues(call: ActionCall, given: shapes.ListQueues) -> QueueUrls:
    """List queues, by name."""
    prefix = given.queue_name_prefix or ""
    call.check(EndpointAddress(call.account, call.region, f"{prefix}*"))
    found = await call.directory.all(call.account, call.region)
    listed = [name for name in found if name.startswith(prefix)]
    page, token = _page(listed, given.next_token, given.max_results)
    urls = [url_of(call, EndpointAddress(call.account, call.region, name)) for name in page]
    return QueueUrls(queue_urls=urls or None, next_token=token)


@action("ListDeadLetterSourceQueues", Level.GET, shapes.ListSources)
async def list_dead_letter_source_queues(call: ActionCall, given: shapes.ListSources) -> SourceUrls:
    """List the queues of which a queue is the dead-letter queue."""
    opened = await call.queue(given.queue_url)
    sources = await sources_of(call, opened.address)
    page, token = _page(sources, given.next_token, given.max_results)
    urls = [url_of(call, opened.address._replace(name=name)) for name in page]
    return SourceUrls(queue_urls=urls, next_token=token)


async def sources_of(call: ActionCall, target: EndpointAddress) -> list[str]:
    """The names of the queues of which a queue is the dead-letter queue."""
    found = await call.directory.all(target.account, target.region)
    sources = []
    for name, endpoint in found.items():
        if endpoint is not None:
            redrive = attributes.redrive(endpoint, target._replace(name=name))
            if redrive is not None and redrive.target == target:
                sources.append(name)
    return sources


def _page(
    listed: Sequence[str], token: str | None, most: int | None
) -> tuple[Sequence[str], str | None]:
    """The names after a token, and the token of the next page."""
    if most is not None and not 1 <= most <= _PAGE_MAX:
        raise invalid(
            f"Value {most} for parameter MaxResults is invalid. Reason: MaxResults must be an "
            f"integer between 1 and {_PAGE_MAX}."
        )
    if token is not None and most is None:
        raise invalid("MaxResults is a mandatory parameter when you provide a value for NextToken.")
    if token:
        last = _last_of(token)
        listed = [name for name in listed if name > last]
    page = listed[: most or _PAGE_MAX]
    # Without MaxResults AWS lists a thousand, and no token.
    has_more = most is not None and len(page) < len(listed)
    return page, base64.urlsafe_b64encode(page[-1].encode()).decode() if has_more else None


def _last_of(token: str) -> str:
    """The name after which a page begins, of a token that `_page` has made.

    Raises:
        SqsRefusal: If it is none.
    """
    try:
        last = base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error) as error:
        raise invalid("Invalid or expired next token.") from error
    if not is_name(last):
        raise invalid("Invalid or expired next token.")
    return last


@action("GetQueueAttributes", Level.GET, shapes.GetQueueAttributes)
async def get_queue_attributes(
    call: ActionCall, given: shapes.GetQueueAttributes
) -> QueueAttributes:
    """Read attributes of a queue."""
    opened = await call.queue(given.queue_url)
    asked = attributes.asked(given.attribute_names or ())
    depth = None
    if attributes.needs_depth(asked):
        depth = await opened.depth(call.site.clock.boot_us())
    found = attributes.told(asked, opened.endpoint, opened.address, depth)
    return QueueAttributes(attributes=found or None)


@action("SetQueueAttributes", Level.MANAGE, shapes.SetQueueAttributes, What.ALTER)
async def set_queue_attributes(call: ActionCall, given: shapes.SetQueueAttributes) -> None:
    """Change attributes of a queue."""
    opened = await call.queue(given.queue_url)
    wanted = attributes.checked(given.attributes, opened.address, is_new=False)
    await _check_target(call, opened.address, wanted)
    await _change_attributes(call, opened, wanted)


async def _change_attributes(call: ActionCall, opened: SqsQueue, wanted: Mapping[str, str]) -> None:
    now_ms = call.site.clock.now_ms()

    def change(before: Endpoint) -> Endpoint:
        return replace(
            before, attributes=attributes.merged(before.attributes, wanted), changed_ms=now_ms
        )

    changed = await call.directory.change(opened, change)
    durations = _durations(changed)
    settings: dict[str, Any] = {
        setting: durations[setting] for name, setting in _SETTINGS.items() if name in wanted
    }
    if "RedrivePolicy" in wanted:
        # Only then: the dead-letter queue of an older policy may not exist any more.
        settings |= await _deaths(call, changed, opened.address)
    if settings:
        await opened.served.queue.alter(**settings)


@action("PurgeQueue", Level.DELETE, shapes.OfQueue, What.PURGE)
async def purge_queue(call: ActionCall, given: shapes.OfQueue) -> None:
    """Delete all messages of a queue."""
    opened = await call.queue(given.queue_url)
    now_ms = call.site.clock.now_ms()

    def check(before: Endpoint) -> None:
        if before.purged_ms > now_ms - _PURGE_PAUSE_MS:
            raise SqsRefusal(
                "PurgeQueueInProgress",
                f"Only one PurgeQueue operation on {opened.address.name} is allowed every 60 "
                "seconds.",
            )

    await call.directory.change(opened, check)
    # The time is noted after the purge, so that a failed purge may be repeated at once.
    await opened.served.queue.purge()
    opened.changed()
    await call.directory.change(opened, lambda before: replace(before, purged_ms=now_ms))


@action("DeleteQueue", Level.DELETE, shapes.OfQueue, What.DROP)
async def delete_queue(call: ActionCall, given: shapes.OfQueue) -> None:
    """Delete a queue with all its messages."""
    opened = await call.queue(given.queue_url)
    address, made_ms = opened.address, opened.endpoint.made_ms
    # The endpoint is removed last, so that a failed delete can be repeated.
    await opened.served.queue.drop()
    await call.site.threads.call(lambda: call.directory.endpoints.remove(address, made_ms))
    call.directory.forget(address)


# Tags and permissions -----------------------------------------------------------------------------


@action("ListQueueTags", Level.GET, shapes.OfQueue)
async def list_queue_tags(call: ActionCall, given: shapes.OfQueue) -> Tags:
    """List the tags of a queue."""
    opened = await call.queue(given.queue_url)
    return Tags(tags=opened.endpoint.tags or None)


@action("TagQueue", Level.MANAGE, shapes.TagQueue, What.ALTER)
async def tag_queue(call: ActionCall, given: shapes.TagQueue) -> None:
    """Set tags of a queue."""
    opened = await call.queue(given.queue_url)
    if not given.tags:
        raise missing("Tags")
    _check_tags(given.tags, opened.address.name)

    def change(before: Endpoint) -> Endpoint:
        tags = before.tags | given.tags
        _check_tags(tags, opened.address.name)
        return replace(before, tags=tags)

    await call.directory.change(opened, change)


@action("UntagQueue", Level.MANAGE, shapes.UntagQueue, What.ALTER)
async def untag_queue(call: ActionCall, given: shapes.UntagQueue) -> None:
    """Remove tags of a queue."""
    opened = await call.queue(given.queue_url)
    if not given.tag_keys:
        raise invalid("Tag keys must be between 1 and 128 characters in length.")

    def change(before: Endpoint) -> Endpoint:
        left = {key: one for key, one in before.tags.items() if key not in given.tag_keys}
        return replace(before, tags=left)

    await call.directory.change(opened, change)


def _check_tags(tags: Mapping[str, str], name: str) -> None:
    if len(tags) > _TAGS_MAX:
        raise invalid(f"Too many tags added for queue {name}.")
    for key, value in tags.items():
        if not 0 < len(key) <= _TAG_KEY_MAX or key.startswith("aws:"):
            raise invalid(
                "Tag keys must be between 1 and 128 characters in length, and not begin with aws:."
            )
        if len(value) > _TAG_VALUE_MAX:
            raise invalid("Tag values must be between 0 and 256 characters in length.")


@action("AddPermission", Level.MANAGE, shapes.AddPermission, What.ALTER)
async def add_permission(call: ActionCall, given: shapes.AddPermission) -> None:
    """Add a statement to the policy of a queue."""
    opened = await call.queue(given.queue_url)
    if not given.actions:
        raise missing("Actions")
    if len(given.actions) > _ACTIONS_MAX:
        raise SqsRefusal(
            "OverLimit",
            f"{len(given.actions)} Actions were found, maximum allowed is {_ACTIONS_MAX}.",
        )

    def change(before: Endpoint) -> Endpoint:
        text = policy.with_permission(
            before.attributes.get("Policy", ""),
            label=given.label,
            accounts=given.accounts,
            actions=given.actions,
            arn=opened.address.arn,
        )
        return replace(before, attributes=before.attributes | {"Policy": text})

    await call.directory.change(opened, change)


@action("RemovePermission", Level.MANAGE, shapes.RemovePermission, What.ALTER)
async def remove_permission(call: ActionCall, given: shapes.RemovePermission) -> None:
    """Remove a statement from the policy of a queue."""
    opened = await call.queue(given.queue_url)

    def change(before: Endpoint) -> Endpoint:
        text = policy.without_permission(before.attributes.get("Policy", ""), given.label)
        return replace(before, attributes=attributes.merged(before.attributes, {"Policy": text}))

    await call.directory.change(opened, change)
