"""The queues, of many, that may have a message with some id or key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.model import ids
from shardq.model.key import bucket_of
from shardq.model.names import dead_queue
from shardq.server import choice
from shardq.server.choice import Choice
from shardq.stores.store import Entry, Slice
from shardq.stores.tables import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardq.queue import Queue


_BORN_MS, _PUT_MAX = 1_000, 1_000
"""When many rows are put at once, an id is born so long after its due at most; rows of a lane."""


def by_key(queues: Mapping[str, Queue], name: str) -> list[str]:
    """The queues that know a key. Costs one read of each queue with keys.

    Args:
        queues: Name -> the queue, its record read just now.
        name: The key.
    """

    def look(queue: Queue) -> str | None:
        home, bucket = queue._home, bucket_of(name)
        found = home.store.notes(KEYS, (home.register.name, bucket), [name])
        return home.register.name if found else None

    keyed = [one for one in queues.values() if one.settings.keys_used]
    return list(_named(keyed, look))


def by_id(queues: Mapping[str, Queue], name: str) -> list[str] | None:
    """The queues that have a message by its id or receipt; None if each must be searched.

    Costs one read of the histories, and one read of each queue. A store that finds rows by their
    ids reads the whole queue and its dead. Another store reads only the place of a message that
    was put without a delay and still waits.

    Args:
        queues: Name -> the queue, its record read just now.
        name: The id or receipt.
    """
    signers = {one: queue._home.register.signer for one, queue in queues.items()}
    if meant := [one for one, signer in signers.items() if signer.is_meant(name)]:
        return meant
    entry = ids.from_text(name)
    kept = [one for one, queue in queues.items() if queue.settings.history_ms]
    if entry is not None and kept:
        recorded = [Entry(one, entry) for one in kept]
        store = queues[recorded[0].queue]._home.store
        if found := [mark.entry.queue for mark in store.recorded(recorded)]:
            return sorted(set(found))

    def look(queue: Queue) -> str | None:
        store, register = queue._home.store, queue._home.register
        own = register.name
        kept = [own, *([dead_queue(own)] if register.has_own_dead else [])]
        return own if any(store.seek(one, entry, name) for one in kept) else None

    def look_where_put(queue: Queue) -> str | None:
        register, layout = queue._home.register, queue._home.register.layout
        after_ms, until_ms = born_ms - _BORN_MS, born_ms + 1
        minutes = range(layout.minute_of(after_ms), layout.minute_of(until_ms) + 1)
        wanted = Slice(
            register.name, minutes, layout.all_lanes(), after_ms, until_ms, _PUT_MAX, bodies=False
        )
        rows = queue._home.store.read(wanted)
        is_there = any(entry in (row.id, row.first) for row in rows)
        return register.name if is_there else None

    if all(one._home.store.is_local for one in queues.values()):
        return list(_named(list(queues.values()), look))
    if entry is None:
        return None
    born_ms = ids.birth_us(entry) // 1_000
    return list(_named(list(queues.values()), look_where_put)) or None


def is_near(queue: Queue, name: str, looked_max: int) -> bool:
    """True if an id is a receipt of a queue, or of a message that is due first or died lately.

    Args:
        queue: The queue.
        name: The id or receipt.
        looked_max: How many messages that are due first, and that died last, are looked at.
    """
    home = queue._home
    if home.register.signer.is_meant(name):
        return True
    if home.store.is_local:
        # This store finds it in any place.
        return True
    wanted = Choice(id=name)
    if choice.page(home, wanted, 1, looked_max=looked_max, bodies=False).rows:
        return True
    if not has_own_dead(queue):
        return False
    dead = queue.dead._home
    found = choice.page(dead, wanted, 1, is_newest=True, looked_max=looked_max, bodies=False)
    return bool(found.rows)


def has_own_dead(queue: Queue) -> bool:
    """True if messages died into the queue's own dead-letter queue, which no other queue shares."""
    register = queue._home.register
    return register.has_own_dead and register.dead_if_made() is not None


def _named(queues: list[Queue], look: Callable[[Queue], str | None]) -> Iterator[str]:
    """The names that a look at each queue returns."""
    if queues:
        found = queues[0]._home.side_by_side(look, queues)
        yield from (name for name in found if name is not None)
