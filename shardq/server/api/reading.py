"""The parts of a request: path, query and body, read into the types of a route."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from shardq.errors import shown
from shardq.server.api.problem import Refused

if TYPE_CHECKING:
    from shardq.server.web import Request

_SIGNATURE = ("sq-", "x-amz-")
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_FIELD = re.compile(r"(?: - at `\$?\.?([^`]*)`|unknown field `([^`]*)`|required field `([^`]*)`)")


def prefix_and_parts(request: Request) -> tuple[str, list[str]]:
    """The path under which the application is mounted, and the parts of the path below it.

    Parts are decoded one by one: a key may hold a slash.

    Raises:
        Refused: If the path is not UTF-8.
    """
    # A signature covers the path with its prefix. The decoded path is the part after the prefix.
    prefix, rest = "", request.raw_path.partition("?")[0]
    while rest and unquote(rest) != request.path:
        first, slash, more = rest[1:].partition("/")
        prefix, rest = f"{prefix}/{first}", slash + more
    try:
        parts = [unquote(part, errors="strict") for part in rest.split("/")[1:]]
    except UnicodeDecodeError as error:
        raise Refused(400, "the path is not UTF-8; encode it as such.") from error
    return prefix, parts


def query_of(request: Request, kind: type[Any] | None) -> Any:
    """The query as a struct; None for a route that takes none.

    Raises:
        Refused: If it does not fit the route.
    """
    try:
        pairs = parse_qsl(
            request.query, keep_blank_values=True, errors="strict", max_num_fields=100
        )
    except ValueError as error:
        raise Refused(400, f"the query cannot be read: {error}.") from error
    # A signature is no part of what a call takes.
    pairs = [pair for pair in pairs if not pair[0].lower().startswith(_SIGNATURE)]
    given = dict(pairs)
    if len(given) < len(pairs):
        twice = _second(pairs)
        raise Refused(400, f"{shown(twice)} is given twice in the query.", field=twice)
    if kind is None:
        if given:
            name = next(iter(given))
            raise Refused(400, f"this call takes no {shown(name)} in the query.", field=name)
        return None
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _unfit(error, "query") from error


def body_of(request: Request, kind: Any) -> Any:
    """The body as the type of a route; None for a route that takes none.

    Raises:
        Refused: If it does not fit the route.
    """
    content = request.body
    if kind is None:
        if content.strip() not in {b"", b"{}"}:
            raise Refused(400, "this call takes no body.")
        return None
    if content and not _JSON.match(request.headers.get("content-type", "")):
        raise Refused(415, "the body must be JSON, with the header Content-Type: application/json.")
    try:
        read = msgspec.json.decode(content or b"{}", type=kind)
        # msgspec keeps the last of two fields of one name, and does not check raw values (`Raw`).
        json.loads(content.decode() or "{}", object_pairs_hook=_once, parse_constant=_no_constant)
    except msgspec.ValidationError as error:
        raise _unfit(error, "body") from error
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not UTF-8, at byte {error.start:,}.") from error
    except RecursionError as error:
        raise Refused(400, "the body is nested too deep.") from error
    except ValueError as error:
        # Also `msgspec.DecodeError`.
        raise Refused(400, f"the body is not JSON: {error}.") from error
    return read


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, whose fields must differ."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = _second(pairs)
        raise Refused(400, f"field {shown(twice)} is given twice.", field=twice)
    return made


def _second(pairs: list[tuple[str, Any]]) -> str:
    """The first name that is given more than once."""
    last = {name: at for at, (name, _) in enumerate(pairs)}
    return next(name for at, (name, _) in enumerate(pairs) if last[name] != at)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _unfit(error: msgspec.ValidationError, where: str) -> Refused:
    text = str(error)
    found = _FIELD.search(text)
    field = found and next(filter(None, found.groups()), None)
    told = text.replace(" - at `$.", ", at `").replace(" - at `$", ", at `")
    return Refused(400, f"the {where} does not fit: {told}.", field=field)
