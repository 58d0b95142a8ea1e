"""Changes of records by compare and set, repeated while others change the same records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.stores.store import Store
    from shardq.stores.tables import Change, Place, Table


def exchange(
    store: Store,
    table: Table[Any, Any],
    seen: Mapping[Place, Mapping[str, Any]],
    plan: Callable[[Place, Mapping[str, Any]], Change | None],
    *,
    tries: int,
) -> bool:
    """Change records, and plan anew for those that others have changed meanwhile.

    Args:
        seen: Place of a record -> its values, as they were read.
        plan: Returns the change of a record for its present values; None: there is none to make.
        tries: The most writes.

    Returns:
        True if every change was applied; False if others kept changing a record.

    Raises:
        StoreTimeout: Some changes may be applied.
        StoreUnavailable: Nothing of the last write is applied.
    """
    for _ in range(tries):
        changes = [
            change for place, values in seen.items() if (change := plan(place, values)) is not None
        ]
        if not changes:
            return True
        seen = store.write_records(table, changes)
        if not seen:
            return True
    return False
