"""The queues that a caller may use, by the levels of its key and by its account.

Over HTTP a queue has its name in shardq. A queue that another account made by SQS has a name that
begins with `sqs.` and that account's id: no other account may use it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardq.server.refusals import AccessDenied

if TYPE_CHECKING:
    from shardq.server.access import Caller
    from shardq.server.grants import Level
    from shardq.server.site import Site

_OWNED = re.compile(r"sqs\.([0-9]{12})\.")


def is_of(caller: Caller, queue: str, site: Site) -> bool:
    """True if a queue belongs to the caller's account; on an open server each does."""
    found = _OWNED.match(queue)
    owner = site.options.account if found is None else found[1]
    return caller.via == "open" or caller.account == owner


def allows(caller: Caller, level: Level, queue: str, site: Site) -> bool:
    """True if a caller has a level for a queue."""
    return is_of(caller, queue, site) and caller.allows(level, queue)


def check(caller: Caller, level: Level, queue: str | None, site: Site) -> None:
    """Refuse a caller that lacks a level, for a queue or for none.

    Raises:
        AccessDenied: If it does.
    """
    if queue is not None and not is_of(caller, queue, site):
        raise AccessDenied(
            f"queue {queue!r} is not one of account {caller.account}; over HTTP its queues are "
            f"those whose names begin with sqs.{caller.account}."
        )
    caller.check(level, queue)
