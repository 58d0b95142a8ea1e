"""Limits of groups: listed, set, removed."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from shardq.model.limits import GroupLimits, limits_of
from shardq.records.actions import What
from shardq.server.api.problem import Refused
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.grants import Level

_GROUPS = QUEUE + "/limits/{groups}"


class LimitsToSet(Struct, kw_only=True, forbid_unknown_fields=True):
    """The limits of groups; one that is not given is the default.

    Attributes:
        places: Deliveries that may run at once.
        rate: Deliveries that may begin in a time, `10/s`; several in a list.
        burst: How many may begin at once after a rest.
        tier: The weight beside other groups.
    """

    places: int | UnsetType = UNSET
    rate: str | list[str] | UnsetType = UNSET
    burst: int | UnsetType = UNSET
    tier: int | UnsetType = UNSET


class LimitRule(Struct, kw_only=True):
    """The limits that hold for groups.

    Attributes:
        groups: The name of a group, or the beginning of names and a `*`; `*`: each group that no
            other rule names.
        places: Deliveries that may run at once.
        rates: Deliveries that may begin in a time; empty: any number.
        bursts: For each rate, how many may begin at once after a rest.
        tier: The weight beside other groups.
        paused: True if the groups are paused by this name.
    """

    groups: str
    places: int
    rates: list[str]
    bursts: list[int]
    tier: int
    paused: bool


class LimitRules(Struct):
    """The limits of a queue's groups.

    Attributes:
        rules: The rules, by name, and the names by which groups are paused.
    """

    rules: list[LimitRule]


@route("GET", QUEUE + "/limits", Level.GET)
async def list_limits(call: RouteCall[None, None]) -> LimitRules:
    """The limits of the groups of a queue."""
    found = await _limits(call)
    return LimitRules([_rule(found, name) for name in sorted({"*", *found.rules, *found.paused})])


@route("PUT", _GROUPS, Level.MANAGE, what=What.ALTER)
async def put_limits(call: RouteCall[None, LimitsToSet]) -> LimitRule:
    """Set the limits of groups, in place of those that they had; they hold within 5 seconds."""
    given: dict[str, Any] = {
        name: value for name, value in asdict(call.body).items() if value is not UNSET
    }
    if not given:
        raise Refused(400, "give a limit; DELETE removes the limits of groups.")
    await (await call.queue()).queue.limit(call.place["groups"], **given)
    return await _own_rule(call)


@route("DELETE", _GROUPS, Level.MANAGE, status=204, what=What.ALTER)
async def remove_limits(call: RouteCall[None, None]) -> None:
    """Remove the limits of groups: the next rule that names them holds."""
    await (await call.queue()).queue.limit(call.place["groups"])


async def _limits(call: RouteCall[Any, Any]) -> GroupLimits:
    return limits_of((await (await call.queue()).queue.settings()).group_limits)


async def _own_rule(call: RouteCall[Any, Any]) -> LimitRule:
    return _rule(await _limits(call), call.place["groups"])


def _rule(found: GroupLimits, groups: str) -> LimitRule:
    limit = found.rules[groups] if groups in found.rules else found.of(groups.rstrip("*"))
    return LimitRule(
        groups=groups,
        places=limit.places,
        rates=[str(rate) for rate, _ in limit.rates],
        bursts=[burst for _, burst in limit.rates],
        tier=limit.tier,
        paused=groups in found.paused,
    )
