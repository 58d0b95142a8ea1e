"""The reference page, made from the table of routes: plain HTML that loads nothing."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from shardq.server.api import openapi
from shardq.server.api.problem import REFERENCE, explained
from shardq.server.api.route import RouteCall, route
from shardq.server.web import Response

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MEDIA = "text/html; charset=utf-8"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
code, h3 { font-family: ui-monospace, monospace } h3 { margin-top: 2.5rem; font-size: 1rem;
overflow-wrap: anywhere } td:first-child code { white-space: nowrap }
table { border-collapse: collapse } td, th { padding: .2rem 1rem .2rem 0; text-align: left;
vertical-align: top } @media (prefers-color-scheme: dark) { body { background: #111; color: #ddd }
a { color: #8bf } }
"""
_STATUSES = {
    400: "The path, the query or the body cannot be read, or is not what the call takes.",
    401: "The call needs a key, or its key is not known.",
    403: "The key does not have the level that the call needs, or the page of another site calls.",
    404: "There is no such path, or nothing of that name.",
    405: "The path has no such method; the header Allow lists those that it has.",
    408: "The body did not arrive in time.",
    409: "The message is running, so nothing was changed.",
    413: "The body is too large.",
    415: "The body must be JSON, with the header Content-Type: application/json.",
    422: "The content cannot be stored as it is.",
    429: "Too many requests; ask again after Retry-After.",
    431: "The headers are too large.",
    500: "An error of the server; its log has the request by its id.",
}


@route("GET", REFERENCE, None, media=MEDIA)
async def get_reference(call: RouteCall[None, None]) -> Response:
    """This page."""
    page = "\n".join(_page(openapi.document(call.routes)))
    headers = [("content-type", MEDIA), ("content-security-policy", _POLICY)]
    return Response(200, page.encode(), headers)


def _page(document: Mapping[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    yield "<!doctype html><html lang=en><meta charset=utf-8><title>shardq: HTTP API</title>"
    yield f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
    yield f"<h1>HTTP API</h1><p>shardq {escape(document['info']['version'])}. The same for programs"
    yield "is <a href=openapi.json>openapi.json</a>. Times are ISO 8601 with a zone, durations"
    yield "<code>90s</code>, <code>10m</code>, <code>1h30m</code>.</p><h2>Calls</h2>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _call(f"{method.upper()} {path}", operation)
    yield "<h2>Types</h2>"
    for name, schema in schemas.items():
        yield from _type(name, schema)
    yield "<h2>Problems</h2><p>A call that fails is answered with <code>problem+json</code>. Its"
    yield "<code>type</code> leads to one of these.</p><table>"
    for name, status, text in explained():
        yield f"<tr id='{name}'><td>{status}<td><code>{name}</code><td>{escape(text)}"
    for status, text in _STATUSES.items():
        yield f"<tr id='status-{status}'><td>{status}<td><td>{escape(text)}"
    yield "</table></html>"


def _call(title: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h3 id='{operation['operationId']}'>{escape(title).replace('/{', '<wbr>/{')}</h3>"
    yield f"<p>{_text(operation['summary'])}. {_text(operation.get('description', ''))}"
    if "x-level" in operation:
        yield f"Needs the level <code>{operation['x-level']}</code>."
    yield "<table>"
    for one in operation.get("parameters", ()):
        if one["in"] == "query":
            yield f"<tr><td><code>?{one['name']}</code><td>{_kind(one['schema'])}"
            yield f"<td>{_text(one['description'])}"
    if "requestBody" in operation:
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        yield f"<tr><td>Body<td>{_kind(body)}<td>"
    for status, answer in operation["responses"].items():
        shown = "Else" if status == "default" else status
        kinds = [
            _kind(content["schema"]) if "schema" in content else escape(media)
            for media, content in answer.get("content", {}).items()
        ]
        yield f"<tr><td>{shown}<td>{' or '.join(kinds) or 'no body'}<td>"
    yield "</table>"


def _type(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h3 id='type-{name}'>{name}</h3><p>{_text(schema.get('description', ''))}<table>"
    for field, one in schema.get("properties", {}).items():
        needed = " (needed)" if field in schema.get("required", ()) else ""
        text = _text(one.get("description", ""))
        yield f"<tr><td><code>{field}</code>{needed}<td>{_kind(one)}<td>{text}"
    yield "</table>"


def _text(text: str) -> str:
    """A text as HTML; text between backticks becomes code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if at % 2 else one for at, one in enumerate(parts))


def _kind(schema: Mapping[str, Any]) -> str:
    """A type in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"<a href='#type-{name}'>{name}</a>"
    if "anyOf" in schema:
        one_first = sorted(schema["anyOf"], key=lambda one: one.get("type") == "array")
        return " or ".join(map(_kind, one_first))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_kind(schema['items'])}"
    return escape(str(schema.get("format") or schema.get("type", "any JSON")))
