"""A server for programs in any language: an SQS endpoint and an HTTP API, and pages for people.

```python
import shardq
from shardq.server import application

app = application(shardq.connect("sqlite:///jobs.db"))
```
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardq.server.site import SiteOptions

if TYPE_CHECKING:
    from shardq.connection import Connection
    from shardq.server.access import Access
    from shardq.server.app import Application

__all__ = ["application", "dashboard"]


def dashboard(db: Connection, *, options: SiteOptions | None = None) -> Application:
    """The pages for people alone, as an ASGI 3 application: mount it under any prefix.

    Args:
        db: The connection whose queues are shown. It stays open.
        options: The choices of the operator, but for `pages`: each path is a page.
    """
    made = replace(options or SiteOptions(), pages="", pages_only=True)
    return application(db, options=made)


def application(
    db: Connection, *, options: SiteOptions | None = None, access: Access | None = None
) -> Application:
    """The server as an ASGI 3 application, to serve or to mount into another one.

    Args:
        db: The connection whose queues are served. It stays open.
        options: The choices of the operator.
        access: Finds the callers of requests. None: requests need keys of the store; as long as
            it has no account, programs of this machine need none.
    """
    from shardq.server.access import Access
    from shardq.server.app import Application

    return Application(db, options or SiteOptions(), access or Access(db, is_open=True))
