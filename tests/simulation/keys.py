"""The rules of keys, judged by callers' answers: a key has one message, and commands are heeded.

A message is identified by its body here, so an edited message counts as another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.model.ids import birth_us
from simulation.books import reason_to_go
from simulation.case import Breach
from simulation.named import ByKey, Named
from simulation.stories import clock_of, story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.case import Case
    from simulation.history import Delivery

_BEGINS_US = 1_500_000
"""A delivery may still begin this long after a cancel or a follower, if it was let begin before."""
_ASKED_US = 300_000
"""How long after a cancel its handler may not know of it: it reads every 0.25 s at most."""
_CLOCKS_US = 250_000
"""How far a process's corrected clock may be off."""
_ROUNDED_US = 1_000


def keys(case: Case) -> Iterator[Breach]:
    """All rules of keys."""
    if not case.history.errands:
        return
    named = Named(case)
    for rule in (_named, _answered, _heeded, _moved, _stopped, _debounced, _held):
        yield from rule(case, named)


def _named(case: Case, named: Named) -> Iterator[Breach]:
    """A message with a key has a row until it ends or a call ends it."""
    history = case.history
    left = {written.row.id for written in history.written.values() if written.deleted_us is None}
    for token in named.key_of:
        is_left = any(row_id in left for row_id in case.rows[token])
        is_over = is_left or _may_be_gone(case, named, token, history.ended_us)
        if token in named.known_us and not is_over:
            yield _breach(case, named, "named", token, "was put and is gone")
    for us, token, process in history.gone:
        if named.known_us.get(token, us) < us and not _may_be_gone(case, named, token, us):
            yield _breach(case, named, "named", token, f"was gone at {_at(case, us)}, by {process}")
    for call in _answers(named, "put"):
        for token in named.tokens(call.errand.key, call.begun_us):
            ids = {written.row.message_id for written in case.written(token)}
            if call.message_id not in ids and named.is_there(token, call):
                yield _breach(case, named, "named", token, f"was there for {_shown(case, call)}")


def _may_be_gone(case: Case, named: Named, token: int, us: int) -> bool:
    by_key = named.reason_to_go(token, us)
    return by_key is not None or reason_to_go(case, token, us) is not None


def _answered(case: Case, named: Named) -> Iterator[Breach]:
    """An answer that a message exists, or does not, was true at some moment of the call."""
    for call in _answers(named, "not there"):
        for token in named.tokens(call.errand.key, call.begun_us):
            if not call.is_unsure and named.is_there(token, call):
                yield _breach(case, named, "answered", token, f"was there: {_shown(case, call)}")
    for call in _answers(named, "kept", "taken", "waiting", "running", "dead"):
        told = call.told
        if told is None:
            continue
        if call.answer == "kept" and call.errand.conflict != "keep" and not call.is_unsure:
            text = f"was not to be kept: {_shown(case, call)}"
            yield _breach(case, named, "answered", told, text)
        if not named.was_there(told, call, is_dead=call.answer == "dead"):
            yield _breach(case, named, "answered", told, f"was not there: {_shown(case, call)}")
        for before in _overs(named, call.errand.key, call.begun_us, told):
            if not any(w.at_us >= before.begun_us for w in case.revived.get(told, ())):
                text = f"was over by {_shown(case, before)}, and there for {_shown(case, call)}"
                yield _breach(case, named, "answered", told, text)


def _overs(named: Named, name: str, until_us: int, token: int) -> Iterator[ByKey]:
    """Calls that ended a message of a key before a time: cancelled, replaced or put anew.

    A call does not count if the message's own put, without an answer, was repeated after it.
    """
    calls = named.calls[name]
    repeated = [own for own in calls if own.token == token and own.is_unsure]
    for call in calls:
        is_before = call.is_done and (call.ended_us or 0) <= until_us
        is_put_again = any(_goes_on(own, call.begun_us) for own in repeated)
        if (
            is_before
            and not is_put_again
            and call.errand.does != "move"
            and call.errand.of in (None, token)
            and call.token != token
            and not _is_called_off(named, call, until_us)
            and named.known_us.get(token, 1 << 62) <= call.begun_us
        ):
            yield call


def _is_called_off(named: Named, call: ByKey, us: int) -> bool:
    """True if the message that a call put or edited may have been cancelled by a time.

    If it followed another message, the key then belongs to that one again.
    """
    return (
        (call.errand.conflict == "debounce" or call.errand.does == "edit")
        and call.token is not None
        and named.may_be_cancelled(call.token, us)
    )


def _goes_on(call: ByKey, us: int) -> bool:
    return call.ended_us is None or call.ended_us > us


def _heeded(case: Case, named: Named) -> Iterator[Breach]:
    """A message that was cancelled or replaced, or is not the newest of its key, does not begin."""
    for token in named.key_of:
        for one in case.by_token[token]:
            for call in _overs(named, named.key_of[token], one.begun_us - 1, token):
                is_back = named.has_come_back(token, one.row.id, call.begun_us)
                if _had_begun(case, call, one):
                    # Later calls concern the message that follows this one.
                    break
                if not (is_back or case.is_purged(token, one.begun_us)):
                    text = f"began at {_at(case, one.begun_us)} after {_shown(case, call)}"
                    yield _breach(case, named, "heeded", token, text)
                    break


def _had_begun(case: Case, call: ByKey, one: Delivery) -> bool:
    """True if a delivery was let begin before another message followed: no replacement then."""
    ids = {written.row.message_id for written in case.written(one.token)}
    is_followed = call.errand.conflict == "debounce" and call.message_id not in ids
    since_us = call.ended_us or 0
    return is_followed and (
        one.begun_us <= since_us + _BEGINS_US
        or case.kept_up(one.process, since_us - _BEGINS_US, one.begun_us)
    )


def _moved(case: Case, named: Named) -> Iterator[Breach]:
    """A message that was moved does not begin before its new due."""
    for call in _answers(named, "done", does="move"):
        assert call.ended_us is not None
        due_us = case.history.due_us(call.due_us, call.begun_us)
        for token in named.tokens(call.errand.key, call.begun_us):
            for one in case.by_token[token]:
                early_us = due_us - one.begun_us - case.history.slack_us[one.process]
                is_early = one.begun_us > call.ended_us and early_us > _ROUNDED_US
                if (
                    is_early
                    and not _is_moved_again(named, call, one)
                    and not named.has_come_back(token, one.row.id, call.begun_us)
                ):
                    text = f"began {early_us / 1e6:.3f} s before its due by {_shown(case, call)}"
                    yield _breach(case, named, "moved", token, text)


def _is_moved_again(named: Named, call: ByKey, one: Delivery) -> bool:
    return any(
        other is not call
        and other.errand.does == "move"
        and not other.is_void
        and other.begun_us <= one.begun_us
        and (other.ended_us is None or other.ended_us >= call.begun_us or not other.is_done)
        for other in named.of(one.token)
    )


def _stopped(case: Case, named: Named) -> Iterator[Breach]:
    """A running message that was cancelled is asked to stop, and does not begin again."""
    for call in _answers(named, "running", does="cancel"):
        assert call.ended_us is not None
        for token in named.tokens(call.errand.key, call.begun_us):
            for one in case.by_token[token]:
                after_us = one.begun_us - call.ended_us
                if (
                    after_us > _BEGINS_US
                    and not case.kept_up(one.process, call.ended_us - _BEGINS_US, one.begun_us)
                    and not named.has_come_back(token, one.row.id, call.begun_us)
                ):
                    text = f"began at {_at(case, one.begun_us)} after {_shown(case, call)}"
                    yield _breach(case, named, "stopped", token, text)
                elif one.begun_us <= call.begun_us and _runs_on(case, one, call.ended_us):
                    text = f"was not asked to stop by {_shown(case, call)}"
                    yield _breach(case, named, "stopped", token, text)


def _runs_on(case: Case, one: Delivery, since_us: int) -> bool:
    """True if a handler, long after a cancel of its message, was told not to stop."""
    return any(
        us > since_us + _ASKED_US
        and not is_to_stop
        and not case.kept_up(one.process, since_us, us + _BEGINS_US)
        for us, is_to_stop in one.asked
    )


def _debounced(case: Case, named: Named) -> Iterator[Breach]:
    """A debounced message is due no later than `max_wait` after its first put."""
    for call in _answers(named, "put"):
        row, wait_ms = call.row, call.errand.max_wait_ms
        if row is None or row.first is None or wait_ms is None:
            continue
        if any(
            other.errand.does == "move"
            and other.begun_us <= (call.ended_us or 0)
            and (other.ended_us or call.begun_us) >= call.begun_us
            for other in named.calls[call.errand.key]
        ):
            # The answer after a repeat shows the row as another call moved it meanwhile.
            continue
        latest_us = max(birth_us(row.first) + wait_ms * 1_000, case.history.wall_us(call.begun_us))
        now_us = case.history.wall_us(call.ended_us or 0)
        if row.due_ms * 1_000 > max(latest_us, now_us) + _CLOCKS_US:
            token = call.token or 0
            yield _breach(case, named, "debounced", token, f"waits too long: {_shown(case, call)}")


def _held(case: Case, named: Named) -> Iterator[Breach]:
    """A key put with `unique_for` is held after the ack of its message, if nothing failed."""
    for call in _answers(named, "put"):
        for token in named.tokens(call.errand.key, call.begun_us):
            unique_ms = next(c.errand.unique_ms for c in named.of(token) if c.token == token)
            if unique_ms is None or token == call.token or case.history.sets:
                continue
            for us, gone, process in case.history.gone:
                is_within = us < call.begun_us - _ROUNDED_US and (call.ended_us or 0) < (
                    us + unique_ms * 1_000 - _CLOCKS_US
                )
                if gone != token or not is_within:
                    continue
                is_acked = any(
                    one.outcome == "ack" and one.process == process and one.begun_us < us
                    for one in case.by_token[token]
                )
                until_us = us + _BEGINS_US
                is_hindered = (
                    case.kept_up(process, us - _BEGINS_US, until_us)
                    or process in case.crash_us
                    or named.reason_to_go(token, us) is not None
                    or case.is_purged(token, call.ended_us or 0)
                )
                if is_acked and not is_hindered:
                    text = f"was to hold its name until after {_shown(case, call)}"
                    yield _breach(case, named, "held", token, text)


def _answers(named: Named, *answers: str, does: str = "") -> Iterator[ByKey]:
    """The calls that got one of these answers."""
    for calls in named.calls.values():
        for call in calls:
            is_one = call.ended_us is not None and call.answer in answers
            if is_one and does in ("", call.errand.does):
                yield call


def _breach(case: Case, named: Named, rule: str, token: int, text: str) -> Breach:
    calls = "; ".join(_shown(case, call) for call in named.of(token))
    name = named.key_of[token]
    return Breach(rule, f"m{token} of {name!r} {text}: {story(case, token)}; {calls}", token)


def _shown(case: Case, call: ByKey) -> str:
    ended = "never" if call.ended_us is None else _at(case, call.ended_us)
    unsure = ", unsure" if call.is_unsure else ""
    what = "" if call.token is None else f" m{call.token}"
    told = "" if call.told is None else f" m{call.told}"
    return f"[{_at(case, call.begun_us)} to {ended} {call.process} {call.said}{told}{what}{unsure}]"


def _at(case: Case, us: int) -> str:
    return clock_of(case, us)
