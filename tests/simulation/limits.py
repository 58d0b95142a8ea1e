"""The rule of limits: they bound how many deliveries run at once, and begin in any time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from shardq.model.limits import is_slow, limits_of
from simulation.case import Breach, Case, leased_as
from simulation.order import came_along, group_is_excused, held_until_us, is_let_go
from simulation.stories import clock_of, story

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.model.limits import BeginRate
    from simulation.history import Delivery, HandedOut

_DRIFT = 1 - 8e-4
"""The most by which a clock that drifts 200 ppm shortens the time between two begins."""
_TOLD_US = 6_000_000
"""After this time each process knows a change, and has ended the step that was under way."""
_KEPT_US = 15_000_000
"""How long a delayed process may still follow former limits."""


class Begun(NamedTuple):
    """A delivery, and how it was handed out."""

    one: Delivery
    told: HandedOut


def limited(case: Case) -> Iterator[Breach]:
    """Each member keeps the limits of groups and of the queue that it knows."""
    if not case.history.plan.ending:
        return
    begun = _begun(case)
    groups: dict[str, list[Begun]] = defaultdict(list)
    for each in begun:
        if each.one.row.group is not None:
            groups[each.one.row.group].append(each)
    for name, mine in groups.items():
        yield from _places(case, name, mine)
        rates = [(each, each.told.limit.rates) for each in mine]
        yield from _rates(case, f"group {name}", rates)
    yield from _rates(case, "the queue", [(each, each.told.of_queue.rates) for each in begun])
    late = [(each, each.told.of_late) for each in begun if each.told.of_late]
    yield from _rates(case, "late messages", late)
    yield from _running(case, begun)
    yield from _followed(case, begun)


def _begun(case: Case) -> list[Begun]:
    """Each delivery with its hand-out; one that came along with its group's head has the head's."""
    handed: dict[tuple[str, int], list[HandedOut]] = defaultdict(list)
    of_group: dict[tuple[str, str | None], list[HandedOut]] = defaultdict(list)
    group_of = {one.token: one.row.group for one in case.history.deliveries}
    for told in case.history.handed_out:
        handed[told.process, told.token].append(told)
        of_group[told.process, group_of.get(told.token)].append(told)
    begun = []
    for one in case.history.deliveries:
        mine = _last(handed[one.process, one.token], one.begun_us)
        mine = mine or _last(of_group[one.process, one.row.group], one.begun_us)
        if mine is not None:
            begun.append(Begun(one, mine))
    return begun


def _last(told: Sequence[HandedOut], us: int) -> HandedOut | None:
    place = bisect_right(told, us, key=lambda each: each.us)
    return told[place - 1] if place else None


def _places(case: Case, name: str, begun: list[Begun]) -> Iterator[Breach]:
    """No delivery of a group begins while as many of the group are held as it has places."""
    held: list[Begun] = []
    for second in begun:
        held = [b for b in held if held_until_us(case, b.one, second.one) > second.one.begun_us]
        under_way = [
            first
            for first in held
            if first.one.token != second.one.token
            and not is_let_go(case, first.one, second.one)
            and not group_is_excused(case, first.one, second.one)
        ]
        # A delivery that was handed out later, when there were more places, may begin earlier.
        later = [each.told for each in under_way if each.told.us >= second.told.us]
        allowed = max(told.limit.places for told in (second.told, *later))
        if allowed == 1:
            under_way = [b for b in under_way if not came_along(case, b.one, second.one)]
        if len(under_way) >= allowed:
            others = ", ".join(f"m{first.one.token}" for first in under_way)
            yield Breach(
                "limited",
                f"m{second.one.token} of group {name}, of {allowed} places, began at "
                f"{clock_of(case, second.one.begun_us)} beside {others}",
                second.one.token,
            )
        held = [*(each for each in held if each.one.token != second.one.token), second]


def _rates(
    case: Case,
    what: str,
    begun: list[tuple[Begun, tuple[tuple[BeginRate, int], ...]]],
) -> Iterator[Breach]:
    """In any time T at most rate x T + burst deliveries begin, while the same rates hold.

    A slow rate holds beyond that, because its record outlasts other rates and owners. An owner that
    starts after the clock was set forward reads that record by the new time.
    """
    full_us: dict[tuple[BeginRate, int], tuple[float, float]] = {}
    former: tuple[tuple[BeginRate, int], ...] = ()
    for each, rates in sorted(begun, key=lambda pair: pair[0].told.us):
        us = each.told.us
        if rates != former or _is_forked(case, each.one):
            former, full_us = rates, {one: at for one, at in full_us.items() if is_slow(*one)}
        for rate, burst in rates:
            every_us = rate.interval_us * _DRIFT
            shown_us = case.history.wall_us(us) if is_slow(rate, burst) else us
            true_us, wall_us = full_us.get((rate, burst), (us, shown_us))
            true_us, wall_us = max(true_us, us), max(wall_us, shown_us)
            if min(true_us - us, wall_us - shown_us) > (burst - 1) * every_us + 1:
                yield Breach(
                    "limited",
                    f"m{each.one.token} at {clock_of(case, us)} by {each.one.process}: more than "
                    f"{rate} and a burst of {burst} of {what}: {story(case, each.one.token)}",
                    each.one.token,
                )
            full_us[rate, burst] = true_us + every_us, wall_us + every_us


def _is_forked(case: Case, one: Delivery) -> bool:
    """True if two members may hand out a group, because a fork released the lease of its lane."""
    return case.is_forked([leased_as(one.row.shard)], one.begun_us, one.begun_us)


def _running(case: Case, begun: list[Begun]) -> Iterator[Breach]:
    """No handler begins while as many run as the queue's limit allows."""
    held: list[Begun] = []
    for second in begun:
        if second.one.kind != "handler":
            continue
        us, most = second.one.begun_us, second.told.of_queue.running
        held = [b for b in held if b.one.ended_us is None or b.one.ended_us > us]
        held = [b for b in held if not case.crashed(b.one.process, b.one.begun_us, us)]
        beside = [first for first in held if not _has_stopped(case, first.one, us)]
        # A running handler may have begun by a limit that this process does not know yet.
        since = _said_at(case, second)
        newer = [b.told.of_queue.running for b in beside if _said_at(case, b) > since]
        if most and all(newer) and len(beside) >= max([most, *newer]):
            yield Breach(
                "limited",
                f"m{second.one.token} at {clock_of(case, us)} by {second.one.process}: {most} may "
                f"run, and there ran {', '.join(f'm{b.one.token}' for b in beside)}",
                second.one.token,
            )
        if most:
            held.append(second)


def _said_at(case: Case, begun: Begun) -> int:
    """When the queue's limit was set by which a delivery began."""
    said = [
        each.us
        for each in case.history.said
        if each.us <= begun.told.us and each.of_queue == begun.told.of_queue
    ]
    return max(said, default=0)


def _has_stopped(case: Case, one: Delivery, us: int) -> bool:
    """True if a delivery's process may have lost its share meanwhile: it was delayed, or left."""
    return case.kept_up(one.process, max(one.begun_us, us - _KEPT_US), us) or case.interrupted(one)


def _followed(case: Case, begun: list[Begun]) -> Iterator[Breach]:
    """Members follow changes within seconds."""
    said = case.history.said
    for one, told in begun:
        since_us = told.us - _TOLD_US
        heard = [each for each in said if each.us <= told.us]
        last = sum(each.us <= since_us for each in heard)
        heard = heard[max(last - 1, 0) :]
        if case.kept_up(one.process, told.us - _KEPT_US, told.us):
            continue
        limits = {each.of_queue for each in heard}
        of_group = {limits_of(each.group_limits).of(one.row.group or "") for each in heard}
        is_known = one.row.group is None or told.limit in of_group
        if not is_known or told.of_queue not in limits:
            yield Breach(
                "limited",
                f"m{one.token} at {clock_of(case, told.us)} by {one.process}, by limits that had "
                f"been changed before: {told.limit}, {told.of_queue}",
                one.token,
            )
