"""The table of routes, and the search in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.server.api import (
    accounts,
    actions,
    calendar,
    dead,
    deliveries,
    finding,
    forwarding,
    keys,
    limits,
    listing,
    many,
    messages,
    openapi,
    queues,
    reference,
    schedules,
    stream,
    tasks,
    watching,
)
from shardq.server.api.route import place_of, routes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.server.api.route import Route

_ROOMS = (
    *(queues, limits, messages, listing, many, deliveries),
    *(forwarding, stream, keys, watching, dead),
    *(finding, calendar, schedules, tasks),
    *(accounts, actions, openapi, reference),
)
_ORDER = [room.__name__ for room in _ROOMS]
ROUTES: tuple[Route, ...] = tuple(
    sorted(routes, key=lambda route: _ORDER.index(route.handler.__module__))
)
"""All routes: room by room, as their documentation lists them."""


def found(parts: Sequence[str]) -> dict[str, tuple[Route, Mapping[str, str]]]:
    """The routes of a path and its parameters, by method; empty if there is no such path.

    Args:
        parts: The parts of the path, decoded.
    """
    return {
        route.method: (route, place)
        for route, wanted in _BY_LENGTH.get(len(parts), ())
        if (place := place_of(wanted, parts)) is not None
    }


_BY_LENGTH: dict[int, list[tuple[Route, list[str]]]] = {}
for _route in ROUTES:
    _BY_LENGTH.setdefault(len(_route.parts), []).append((_route, _route.parts))
