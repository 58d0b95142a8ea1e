"""Requests into calls, and answers onto the wire: AWS JSON 1.0, and the query protocol.

```
 X-Amz-Target: AmazonSQS.SendMessage, JSON ─┐                          ┌─► JSON
                                            ├─► action, input ─► output┤
 Action=SendMessage, a form ────────────────┘                          └─► XML
```
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shardq.server.sqs import xml
from shardq.server.sqs.errors import SqsRefusal, missing
from shardq.server.web import Response

if TYPE_CHECKING:
    from shardq.server.sqs.actions import SqsAction
    from shardq.server.web import Request

_TARGET: Final = "AmazonSQS."
_JSON: Final = ("content-type", "application/x-amz-json-1.0")
_XML: Final = ("content-type", "text/xml")
_ERROR_TYPE: Final = "com.amazonaws.sqs#"
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_encoder = msgspec.json.Encoder()


class Json:
    """The protocol of AWS JSON 1.0."""

    def __init__(self, request: Request) -> None:
        self._body = request.body
        target = request.headers.get("x-amz-target", "")
        self.action = target.removeprefix(_TARGET) if target.startswith(_TARGET) else ""

    def input(self, action: SqsAction) -> Any:
        """The input of an action.

        Raises:
            SqsRefusal: If the request has no such input.
        """
        try:
            return action.decoder.decode(self._body or b"{}")
        except msgspec.ValidationError as error:
            raise _invalid(error) from error
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise SqsRefusal("SerializationException", "The body is no JSON object.") from error

    def answer(self, output: msgspec.Struct | None) -> Response:
        """The answer to an action."""
        body = b"{}" if output is None else _encoder.encode(output)
        return Response(200, body, [_JSON])

    def error(self, refusal: SqsRefusal, _request_id: str) -> Response:
        """The answer to a request that is refused."""
        body = {"__type": f"{_ERROR_TYPE}{refusal.kind}", "message": refusal.text}
        blamed = "Sender" if refusal.is_sender else "Receiver"
        headers = [_JSON, ("x-amzn-query-error", f"{refusal.code};{blamed}")]
        return Response(refusal.status, _encoder.encode(body), headers)


class Query:
    """The query protocol: a form in the url or the body."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._fields: dict[str, str] = {}
        self.action = ""

    def read(self) -> None:
        """Read the form.

        Raises:
            SqsRefusal: If the request has no such input.
        """
        self._fields = xml.fields_of(self._request.query, self._request.body)
        self.action = self._fields.pop("Action", "")

    def input(self, action: SqsAction) -> Any:
        """The input of an action.

        Raises:
            SqsRefusal: If the request has no such input.
        """
        given = xml.input_of(self._fields)
        if "QueueUrl" not in given and self._request.path.count("/") > 1:
            given["QueueUrl"] = f"http://{self._request.host}{self._request.path}"
        try:
            return msgspec.convert(given, action.input, strict=False)
        except msgspec.ValidationError as error:
            raise _invalid(error) from error

    def answer(self, output: msgspec.Struct | None) -> Response:
        """The answer to an action."""
        found = None if output is None else msgspec.to_builtins(output)
        return Response(200, xml.answer_of(self.action, found, self._request.id), [_XML])

    def error(self, refusal: SqsRefusal, request_id: str) -> Response:
        """The answer to a request that is refused."""
        return Response(refusal.status, xml.error_of(refusal, request_id), [_XML])


def protocol_of(request: Request) -> Json | Query:
    """The protocol of a request."""
    if "x-amz-target" in request.headers or "json" in request.headers.get("content-type", ""):
        return Json(request)
    return Query(request)


def _invalid(error: msgspec.ValidationError) -> SqsRefusal:
    text = str(error)
    found = _MISSING.match(text)
    if found is not None and "at `$" not in text.replace("at `$`", ""):
        return missing(found[1])
    return SqsRefusal("SerializationException", f"The input is not as the action takes it: {text}.")
