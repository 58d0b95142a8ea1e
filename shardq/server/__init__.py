"""A server for those who do not write Python: an SQS endpoint and an HTTP API.

`shardq serve` runs it by itself; as an ASGI application it is mounted into another one:

```python
import shardq
from shardq.server import application

queues = application(shardq.connect("sqlite:///jobs.db"))
```
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

from shardq.errors import BadSetting, shown
from shardq.server.access import Access
from shardq.server.app import Application
from shardq.server.site import Options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.connection import Connection

__all__ = ["Application", "application"]


def application(
    db: Connection, *, insecure: bool = False, trust: Iterable[str] = ()
) -> Application:
    """The server as an ASGI 3 application, to be mounted into another one.

    Args:
        db: The connection whose queues are served. It stays open.
        insecure: True to answer requests without a key as long as the store has no account: then
            the other application decides who gets this far.
        trust: Networks of proxies whose `X-Forwarded-*` headers are believed, `10.0.0.0/8` say.

    Raises:
        BadSetting: If one of `trust` is no network.
    """
    networks = []
    for one in trust:
        try:
            networks.append(ip_network(one, strict=False))
        except ValueError as error:
            raise BadSetting(f"trust {shown(one)} is no network such as 10.0.0.0/8.") from error
    access = Access(db, is_open=insecure, is_local=False)
    return Application(db, Options(trusted=tuple(networks)), access)
