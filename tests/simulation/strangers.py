"""Heartbeats that no worker sends: false ones, ones that lack fields, unreadable ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simulation.parts import Event

STRANGERS = {"liar", "terse", "garbled"}
"""Kinds of heartbeats that no working process sends."""
EVERY_S = 1.0
TTL_MS = 10_000
_FREE_MAX = 512
_VERSION = 1_000_000


class Stranger(NamedTuple):
    """The stretch of time in which a false heartbeat was repeated."""

    name: str
    kind: str
    begun_us: int
    until_us: int


def heartbeat_of(event: Event, turn: int) -> str:
    """The text of a false heartbeat at its nth repeat."""
    value = int(event.value)
    told = {
        "threads": value,
        "busy": 0,
        "running": 0,
        "longest_ms": 0,
        "shortest_ms": 0,
        "ready": 0,
        "lanes": [],
        "demand": True,
        "isolated": False,
        "runs": [],
    }
    if event.kind == "terse":
        return json.dumps(told)
    told |= {
        "free": value,
        "surplus": 100 * (value % 2),
        "begun": 0,
        "number": turn,
        "version": _VERSION * (value % 3 == 0),
        "leaving": value == 5,
        "parted": [],
        "holder": "",
    }
    if event.kind == "liar":
        return json.dumps(told)
    garbled = (
        "{",
        "[]",
        json.dumps(told | {"free": -1}),
        json.dumps(told | {"free": _FREE_MAX + 1}),
        json.dumps(told | {"free": "1"}),
        json.dumps(told | {"surplus": None}),
        json.dumps(told | {"parted": 7}),
        json.dumps(told | {"number": 1.5}),
    )
    return garbled[(value + turn) % len(garbled)]
