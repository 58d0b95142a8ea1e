"""The OpenAPI 3.1 document, made of the table of routes."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

import shardq
from shardq.server.api.problem import MEDIA as PROBLEM_MEDIA
from shardq.server.api.problem import Problem
from shardq.server.api.route import RouteCall, json_of, route
from shardq.server.web import Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardq.server.api.route import Route

PATH = "/v1/openapi.json"
_REF = "#/components/schemas/{name}"


@route("GET", PATH, None, answer=dict[str, Any])
async def get_openapi(call: RouteCall[None, None]) -> Response:
    """The description of this API as an OpenAPI 3.1 document."""
    return json_of(document(call.routes))


@cache
def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    """The OpenAPI document of routes."""
    kinds = [kind for kind in _kinds(routes) if kind is not None]
    shown, components = msgspec.json.schema_components([*kinds, Problem], ref_template=_REF)
    schemas = dict(zip(map(repr, kinds), shown, strict=False))
    for kind in _structs(kinds):
        _describe(components, kind)
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        operation = _operation(one, schemas, components)
        paths.setdefault(one.path, {})[one.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shardq",
            "version": shardq.__version__,
            "description": "Queues, timers, schedules and tasks over HTTP.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _kinds(routes: Iterable[Route]) -> Iterator[Any]:
    for one in routes:
        yield from (one.query, one.body, one.answer)


def _structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """The structs in types, those within others too."""
    seen: set[Any] = set()
    left = list(kinds)
    while left:
        kind = left.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
            seen.add(kind)
            yield kind
            left += [field.type for field in msgspec.structs.fields(kind)]
        left += getattr(kind, "__args__", ())
        origin = getattr(kind, "__origin__", None)
        if origin is not None and origin not in seen:
            left.append(origin)


def _operation(
    route: Route, schemas: Mapping[str, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": {**_answers(route, schemas), "default": _problem()},
    }
    if route.description:
        made["description"] = route.description
    if route.level is not None:
        made["x-level"] = route.level.name.lower()
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.parameters
    ]
    if route.query is not None:
        taken = components[route.query.__name__]
        parameters += [
            {
                "name": name,
                "in": "query",
                "required": name in taken["required"],
                "schema": schema,
                "description": schema.get("description", ""),
            }
            for name, schema in taken["properties"].items()
        ]
    if parameters:
        made["parameters"] = parameters
    if route.body is not None:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[repr(route.body)]}},
        }
    return made


def _answers(route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.answer is not None:
        content = {"content": {route.media: {"schema": schemas[repr(route.answer)]}}}
    elif route.status == 200:
        content = {"content": {route.media: {}}}
    return {
        str(status): {"description": "Done.", **content} for status in (route.status, *route.also)
    }


def _problem() -> dict[str, Any]:
    return {
        "description": "A problem.",
        "content": {PROBLEM_MEDIA: {"schema": {"$ref": _REF.format(name=Problem.__name__)}}},
    }


def _describe(components: Mapping[str, Any], kind: type[msgspec.Struct]) -> None:
    """Copy the texts of a struct's docstring into its schema."""
    schema = components.get(kind.__name__)
    if schema is None:
        return
    first, _, _ = (inspect.getdoc(kind) or "").partition("\n\n")
    schema["description"] = " ".join(first.split())
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts |= attributes_of(base)
    for name, field in schema["properties"].items():
        if name in texts:
            field["description"] = texts[name]


def attributes_of(kind: type[Any]) -> dict[str, str]:
    """Attribute -> its text in the docstring of a class."""
    _, _, listed = (inspect.cleandoc(kind.__doc__ or "")).partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
