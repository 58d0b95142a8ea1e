"""The query protocol: forms in, XML out. No XML is ever read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from shardq.server.sqs.contents import CONTROL
from shardq.server.sqs.errors import SqsRefusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_FIELDS_MAX = 2_000
"""Fields of a form: ten messages with ten attributes have 500."""
_PARTS_MAX = 8
"""`SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue` has 6 parts."""
_INDEX = re.compile("[0-9]{1,4}")
_LISTS: Final = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
}
"""The name of a list's element in a form -> the name of the field."""
_MAPS: Final = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
"""The name of a map's entry in a form -> the name of the field, and of an entry's two parts."""
_EMPTY: Final = {*_LISTS.values(), *(field for field, *_ in _MAPS.values())}
_ELEMENTS: Final = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Results": "ListMessageMoveTasksResultEntry",
    "Failed": "BatchResultErrorEntry",
}
_ENTRIES: Final = {field: (element, *parts) for element, (field, *parts) in _MAPS.items()}


def fields_of(query: str, body: bytes) -> dict[str, str]:
    """The fields of a form, of the url and of the body.

    Raises:
        SqsRefusal: If it is no form in UTF-8, or has too many fields.
    """
    try:
        text = body.decode()
        parsed = [
            pair
            for part in (query, text)
            for pair in parse_qsl(
                part, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX
            )
        ]
    except ValueError as error:
        raise SqsRefusal(
            "MalformedQueryString", "The request is not a form of at most 2,000 fields in UTF-8."
        ) from error
    return dict(parsed)


def input_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The input of an action, as the JSON protocol would have it."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        node = tree
        *path, last = name.split(".", _PARTS_MAX)
        if len(path) == _PARTS_MAX:
            raise _malformed(name)
        for part in path:
            below = node.setdefault(part, {})
            if not isinstance(below, dict):
                raise _malformed(name)
            node = below
        if isinstance(node.get(last), dict):
            raise _malformed(name)
        node[last] = value
    return _fields(tree)


def _fields(tree: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if name in _LISTS and isinstance(value, dict):
            found[_LISTS[name]] = [
                _fields(one) if isinstance(one, dict) else one for one in _in_order(name, value)
            ]
        elif name in _MAPS and isinstance(value, dict):
            field, key, content = _MAPS[name]
            entries: dict[str, Any] = {}
            for one in _in_order(name, value):
                if not isinstance(one, dict) or not isinstance(one.get(key), str):
                    raise _malformed(name)
                entries[one[key]] = one.get(content, "")
            found[field] = entries
            if field == "Tags":
                # CreateQueue has them in lower case.
                found["tags"] = entries
        elif name in _EMPTY and not value:
            # Old SDKs write an empty list or map like this.
            found[name] = [] if name in _LISTS.values() else {}
        else:
            found[name] = value
    return found


def _in_order(name: str, numbered: Mapping[str, Any]) -> Iterator[Any]:
    if not all(_INDEX.fullmatch(one) for one in numbered):
        raise _malformed(name)
    for number in sorted(numbered, key=int):
        yield numbered[number]


def _malformed(name: str) -> SqsRefusal:
    return SqsRefusal("MalformedInput", f"The parameter {name[:100]} is malformed.")


def answer_of(action: str, output: Mapping[str, Any] | None, request_id: str) -> bytes:
    """The answer to an action.

    Args:
        action: Its name.
        output: Its output, as the JSON protocol has it; None for none.
        request_id: The request's id.
    """
    result = ""
    if output is not None:
        inner = "".join(_element(action, name, value) for name, value in output.items())
        result = f"<{action}Result>{inner}</{action}Result>" if inner else f"<{action}Result/>"
    return (
        f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">{result}<ResponseMetadata>'
        f"<RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
    ).encode()


def error_of(refusal: SqsRefusal, request_id: str) -> bytes:
    """The answer to a request that is refused."""
    text = refusal.text
    if refusal.kind == "QueueDoesNotExist":
        text = "The specified queue does not exist for this wsdl version."
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error>'
        f"<Type>{'Sender' if refusal.is_sender else 'Receiver'}</Type>"
        f"<Code>{refusal.code}</Code><Message>{_text(text)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def _element(action: str, name: str, value: Any) -> str:
    if isinstance(value, list):
        each = f"{action}ResultEntry" if name == "Successful" else _ELEMENTS.get(name, name)
        return "".join(_element(action, each, one) for one in value)
    if isinstance(value, dict):
        if name not in _ENTRIES:
            inner = "".join(_element(action, one, below) for one, below in value.items())
            return f"<{name}>{inner}</{name}>"
        element, key, content = _ENTRIES[name]
        return "".join(
            f"<{element}><{key}>{_text(one)}</{key}>{_element(action, content, below)}</{element}>"
            for one, below in value.items()
        )
    if isinstance(value, bool):
        value = "true" if value else "false"
    return f"<{name}>{_text(str(value))}</{name}>"


def _text(value: str) -> str:
    # XML has no control characters; a reader would take a bare CR for a line feed.
    return escape(CONTROL.sub("\ufffd", value), {"\r": "&#13;", '"': "&quot;"})
