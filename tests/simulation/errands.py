"""The calls by key that producers make: stories of one key, each a race of puts and commands.

```
 twins:      puts of one key within milliseconds, each with its own `on_conflict`
 called off: a put, and commands just before, at or after its due
 debounced:  a put each moment, due later each time
 worked:     a put whose handlers retry, snooze, run long, bury ; commands in between
 mixed:      anything, for seconds
 overtaken:  a putter that stands still between writing the key and the row; others wait for it
 batched:    many puts by one call, some of one key
```
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulation.parts import Act, Event, Letter, Machine

SHARE = 0.2
"""The share of worlds that have calls by key."""
FIRST_TOKEN = 2_000_000
"""The number of the first message or edited body with a key; later ones count up from it."""
_STORIES = (8, 22)
_LATE_US = (400_000, 1_500_000)
"""Choices of how late a write may be. A process waits twice as long for a late write."""
_SPREADS_S = (0.0, 0.004, 0.05, 0.6)
_DELAYS_MS = (0, 0, 150, 600, 1_500, 3_000)
_CONFLICTS = ("keep", "keep", "keep", "reject", "replace", "replace", "debounce")
_COMMANDS = ("cancel", "cancel", "cancel", "move", "move", "edit", "edit", "get", "put",
             "recall")  # fmt: skip
_VERBS = ("write_records keys", "write_records keys", "insert", "delete", "note places",
          "notes places", "records keys", "find")  # fmt: skip
_EVENTS = (4, 14)
_FAULTS = ("cut", "stall", "fail", "freeze", "drag", "drag", "drag")
_STOPS_S = (0.3, 1.0, 2.0, 5.0)
_OVERTAKEN_S = (1.2, 3.0, 6.0)
_DRAGS_S = (0.01, 0.05, 0.2, 0.6)
_BEFORE_S = 0.003
_RACE_S = 0.1
_LASTS_S = 10.0
"""The longest that a story takes; none begins later than this before the end."""


@dataclass(frozen=True)
class Errand:
    """A call by key.

    Attributes:
        does: put, cancel, move, edit, get; or recall, a cancel by the receipt of a put.
        key: The key.
        letter: The message of a put, or the new body of an edit.
        delay_ms: The delay, from the call on, that a move gives the message.
        conflict: The `on_conflict` of a put.
        max_wait_ms: The `max_wait` of a debounce; None: none.
        unique_ms: The `unique_for` of a put: how long the key is held after the message's end.
        of: The number of the message that a recall cancels.
        batch: Puts with the same number, other than 0, are made by one call.
    """

    number: int
    producer: str
    at_s: float
    does: str
    key: str
    letter: Letter | None = None
    delay_ms: int = 0
    conflict: str = "keep"
    max_wait_ms: int | None = None
    unique_ms: int | None = None
    of: int | None = None
    batch: int = 0

    @property
    def title(self) -> str:
        return f"k{self.number}"


class Errands:
    """Draws the calls by key of one world.

    Args:
        machines: The machines of the world; its producers make the calls.
        active_s: The end of the last story, from the world's begin on.
        letter: The template of a message.
        act: The template of a handler's act: an ack at once.

    Attributes:
        errands: The calls.
    """

    def __init__(
        self, seed: int, machines: Sequence[Machine], active_s: float, letter: Letter, act: Act
    ) -> None:
        self._chance = random.Random(f"keys/{seed}/plan")
        self._producers = [one.name for one in machines if one.role == "producer"]
        self._readers = [one.name for one in machines if one.role != "producer"]
        self._active_s = active_s
        self._letter = letter
        self._act = act
        self._number = 0
        self._last: dict[str, int] = {}
        self._stalls: list[tuple[Errand, float]] = []
        self.errands = tuple(self._draw())

    @staticmethod
    def is_drawn(seed: int) -> bool:
        """True if the world of a seed has calls by key."""
        return random.Random(f"keys/{seed}").random() < SHARE

    def weather(self, weather: dict[str, Any]) -> dict[str, Any]:
        """The same weather, with late writes that arrive sooner."""
        changed = {**weather, "late_us": self._chance.choice(_LATE_US)}
        changed.pop("lingers", None)
        return changed

    def _draw(self) -> Iterator[Errand]:
        chance = self._chance
        stories = (self._twins, self._called_off, self._called_off, self._debounced,
                   self._worked, self._mixed, self._batched, self._overtaken)  # fmt: skip
        names = 0
        for _ in range(chance.randint(*_STORIES)):
            at_s = chance.uniform(0.8, max(self._active_s - _LASTS_S, 1.0))
            if not names or chance.random() < 0.75:
                names += 1
            key = f"order-{names - 1 if chance.random() < 0.8 else chance.randrange(names)}"
            yield from chance.choice(stories)(key, at_s)

    def _twins(self, key: str, at_s: float) -> Iterator[Errand]:
        chance = self._chance
        spread_s, delay_ms = chance.choice(_SPREADS_S), chance.choice(_DELAYS_MS)
        for _ in range(chance.randint(2, 4)):
            yield self._put(key, at_s + chance.random() * spread_s, delay_ms)
        if chance.random() < 0.5:
            yield self._any(key, at_s + chance.random() * 2 * max(spread_s, 0.05))

    def _called_off(self, key: str, at_s: float) -> Iterator[Errand]:
        chance = self._chance
        delay_ms = chance.choice(_DELAYS_MS)
        yield self._put(key, at_s, delay_ms, conflict="keep")
        due_s = at_s + delay_ms / 1e3
        for _ in range(chance.randint(1, 3)):
            near_s = due_s + chance.gauss(0.01, 0.03)
            some_s = chance.uniform(at_s, due_s + 0.5)
            when_s = max(near_s if chance.random() < 0.6 else some_s, at_s + 0.002)
            yield self._any(key, when_s)
        if chance.random() < 0.4:
            yield self._errand("get", key, due_s + chance.uniform(0.0, 3.0))

    def _debounced(self, key: str, at_s: float) -> Iterator[Errand]:
        chance = self._chance
        delay_ms, wait_ms = chance.choice((300, 700, 1_200)), chance.choice((None, 900, 2_000))
        for _ in range(chance.randint(3, 6)):
            yield self._put(key, at_s, delay_ms, conflict="debounce", max_wait_ms=wait_ms)
            at_s += chance.uniform(0.02, delay_ms / 1e3 + 0.1)

    def _worked(self, key: str, at_s: float) -> Iterator[Errand]:
        chance = self._chance
        yield self._put(key, at_s, chance.choice((0, 200)), conflict="keep", is_worked=True)
        for _ in range(chance.randint(2, 5)):
            yield self._any(key, at_s + chance.uniform(0.05, 6.0), is_worked=True)

    def _mixed(self, key: str, at_s: float) -> Iterator[Errand]:
        chance = self._chance
        for _ in range(chance.randint(4, 10)):
            is_put, when_s = chance.random() < 0.5, at_s + chance.uniform(0.0, 7.0)
            delay_ms = chance.choice(_DELAYS_MS)
            yield self._put(key, when_s, delay_ms) if is_put else self._any(key, when_s)

    def _batched(self, key: str, at_s: float) -> Iterator[Errand]:
        chance = self._chance
        producer, delay_ms = chance.choice(self._producers), chance.choice(_DELAYS_MS)
        batch = self._number + 1
        for _ in range(chance.randint(2, 6)):
            one = self._put(chance.choice((key, key, f"{key}-b")), at_s, delay_ms)
            yield replace(self._by(producer, one), batch=batch)
        if chance.random() < 0.5:
            yield self._any(key, at_s + chance.random() * (0.02 + delay_ms / 1e3))

    def _overtaken(self, key: str, at_s: float) -> Iterator[Errand]:
        """A producer stands still between writing a key and the row, about as long as others wait.

        Another producer then calls by the same key, if there is another.
        """
        chance = self._chance
        slow, quick = (*chance.sample(self._producers, len(self._producers)), "")[:2]
        one = self._by(slow, self._put(key, at_s, chance.choice((0, 150))))
        yield one
        if not quick:
            return
        seconds = chance.choice(_OVERTAKEN_S) * chance.uniform(0.8, 1.3)
        self._stalls.append((one, seconds))
        for _ in range(chance.randint(1, 2)):
            yield self._by(quick, self._any(key, at_s + chance.uniform(0.01, seconds)))
        yield self._by(quick, self._put(key, at_s + chance.uniform(0.01, 0.3), 0))

    @staticmethod
    def _by(producer: str, errand: Errand) -> Errand:
        letter = errand.letter and replace(errand.letter, producer=producer)
        return replace(errand, producer=producer, letter=letter)

    def _any(self, key: str, at_s: float, *, is_worked: bool = False) -> Errand:
        does = self._chance.choice(_COMMANDS)
        if does == "put":
            return self._put(key, at_s, self._chance.choice(_DELAYS_MS), is_worked=is_worked)
        if does == "recall" and key not in self._last:
            does = "cancel"
        errand = self._errand(does, key, at_s)
        return replace(errand, of=self._last[key]) if does == "recall" else errand

    def _put(
        self,
        key: str,
        at_s: float,
        delay_ms: int,
        *,
        conflict: str | None = None,
        max_wait_ms: int | None = None,
        is_worked: bool = False,
    ) -> Errand:
        chance = self._chance
        wish = conflict or chance.choice(_CONFLICTS)
        errand = self._errand("put", key, at_s, delay_ms, is_worked=is_worked)
        return replace(
            errand,
            conflict=wish,
            max_wait_ms=max_wait_ms,
            unique_ms=chance.choice((800, 3_000)) if chance.random() < 0.12 else None,
        )

    def _errand(
        self, does: str, key: str, at_s: float, delay_ms: int = 0, *, is_worked: bool = False
    ) -> Errand:
        chance, number = self._chance, self._number
        self._number += 1
        producer, at_s = chance.choice(self._producers), round(at_s, 4)
        letter = None
        if does in ("put", "edit"):
            letter = replace(
                self._letter,
                number=FIRST_TOKEN + number,
                producer=producer,
                at_s=at_s,
                delay_ms=delay_ms,
                key=key,
                acts=self._acts(is_worked=is_worked or chance.random() < 0.25),
            )
        if letter is not None and does == "put":
            self._last[key] = letter.number
        moved_ms = chance.choice((0, 100, 800, 2_500)) if does == "move" else 0
        return Errand(number, producer, at_s, does, key, letter, moved_ms)

    def _acts(self, *, is_worked: bool) -> tuple[Act, ...]:
        chance = self._chance
        acts: list[Act] = []
        while is_worked and chance.random() < 0.6 and len(acts) < 4:
            kind = chance.choice(("retry", "raise", "snooze", "retry", "bury", "ignore", "long"))
            seconds = 0.0 if chance.random() < 0.4 else chance.random() ** 3 * 0.4
            if kind == "long":
                acts.append(replace(self._act, seconds=round(chance.uniform(0.5, 6.0), 3)))
                break
            delay_ms = chance.choice((0, 200, 1_500)) if kind in ("retry", "snooze") else None
            acts.append(replace(self._act, kind=kind, seconds=round(seconds, 4), delay_ms=delay_ms))
        return tuple(acts)

    def _races(self) -> list[Errand]:
        """The puts and commands that another call by the same key follows at once."""
        ones = sorted(self.errands, key=lambda one: (one.key, one.at_s))
        pairs = pairwise(ones)
        return [a for a, b in pairs if a.key == b.key and b.at_s - a.at_s < _RACE_S]

    def events(self, event: Event, *, is_local: bool) -> Iterator[Event]:
        """Faults in the middle of calls by key, and redrives and purges meanwhile.

        Args:
            event: The template of an event.
            is_local: True if no outcome can be unknown.
        """
        chance = self._chance
        for errand, seconds in self._stalls:
            yield replace(
                event,
                at_s=round(errand.at_s - _BEFORE_S, 4),
                kind="stall",
                target=errand.producer,
                verb="insert",
                seconds=seconds,
            )
        if chance.random() < 0.25:
            return
        kinds = _FAULTS if is_local else (*_FAULTS, "lose", "lose", "lose")
        races = self._races()
        for _ in range(chance.randint(*_EVENTS)):
            errand = chance.choice(races if races and chance.random() < 0.6 else self.errands)
            kind, verb = chance.choice(kinds), chance.choice(_VERBS)
            is_reader = chance.random() < 0.25
            if kind == "lose" and errand.does == "cancel":
                is_reader, verb = False, "write_records keys"
            after_s = errand.letter.delay_ms / 1e3 if is_reader and errand.letter else 0.0
            yield replace(
                event,
                at_s=round(max(errand.at_s + after_s - _BEFORE_S, 0.5), 4),
                kind=kind,
                target=chance.choice(self._readers) if is_reader else errand.producer,
                verb=verb,
                seconds=chance.choice(_DRAGS_S if kind == "drag" else _STOPS_S)
                * chance.uniform(0.7, 1.3),
                value=float(chance.randint(1, 3)),
            )
        for kind, share in (("redrive", 0.5), ("redrive", 0.5), ("purge", 0.15)):
            if chance.random() < share:
                at_s = chance.uniform(self._active_s / 3, self._active_s)
                yield replace(event, at_s=at_s, kind=kind)
