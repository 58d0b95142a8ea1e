"""Signed urls: each allows its holder some calls, from one time to another. No I/O.

```
 http://host/v1/queues/orders/messages?sq-key=SQ..&sq-queue=orders&sq-levels=p
                                     &sq-start=..&sq-end=..&sq-signature=..
```

A server or shell signs a url for a key, without the key's secret. The url allows the calls that it
names, as far as its key may make them when the url is used. It ends with the key, and with the
secret that was the key's newest when the url was signed.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from shardq.errors import UsageError
from shardq.model.times import iso
from shardq.server import grants
from shardq.server.refusals import IncompleteSignature, RequestExpired

if TYPE_CHECKING:
    from shardq.server.masterkey import MasterKey

LIFE_MS_MAX = 366 * 86_400_000
"""The longest that a url is valid."""
_NAMES = ("sq-key", "sq-queue", "sq-levels", "sq-start", "sq-end", "sq-signature")
_VALUE_MAX = 200
_PARTS_MAX = 100


@dataclass(frozen=True, slots=True)
class UnverifiedUrl:
    """The parts of a signed url that was not verified.

    Attributes:
        key_id: The key that it is signed for.
        queue: A queue, or a pattern of queues.
        levels: Letters of levels.
        start_s: Not valid before, epoch seconds.
        end_s: Not valid from then on, epoch seconds.
        signature: The signature; empty until it is signed.
    """

    key_id: str
    queue: str
    levels: str
    start_s: int
    end_s: int
    signature: str = ""

    def __repr__(self) -> str:
        return (
            f"UnverifiedUrl(key_id={self.key_id!r}, queue={self.queue!r}, levels={self.levels!r})"
        )

    def query(self, master: MasterKey, account: str, generation: int) -> str:
        """The query of the url, signed.

        Args:
            master: The master key.
            account: The account of the key.
            generation: The generation of the key's newest secret.
        """
        signature = self._signature(master, account, generation)
        values = (*self._values(), signature)
        return urlencode(dict(zip(_NAMES, values, strict=True)), safe="*")

    def is_valid(self, master: MasterKey, account: str, generation: int) -> bool:
        """True if the url was signed for this generation of the key; compared in constant time."""
        expected = self._signature(master, account, generation)
        return hmac.compare_digest(expected.encode(), self.signature.encode())

    def check_time(self, now_ms: int) -> None:
        """Refuse a url that is not valid now.

        Raises:
            RequestExpired: If it is before its start or past its end.
        """
        if now_ms < self.start_s * 1_000:
            raise RequestExpired(f"the url is valid from {iso(self.start_s * 1_000)} on.")
        if now_ms >= self.end_s * 1_000:
            raise RequestExpired(f"the url has ended at {iso(self.end_s * 1_000)}.")

    def _values(self) -> tuple[str, ...]:
        return self.key_id, self.queue, self.levels, str(self.start_s), str(self.end_s)

    def _signature(self, master: MasterKey, account: str, generation: int) -> str:
        key = master.derive("url", self.key_id, generation)
        text = "\n".join(("shardq-url-1", account, *self._values()))
        digest = hmac.digest(key, text.encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def drafted(
    key_id: str, queue: str, levels: str, *, now_ms: int, start_ms: int, end_ms: int
) -> UnverifiedUrl:
    """A url that can be signed.

    Args:
        key_id: The key.
        queue: A queue, or a pattern of queues.
        levels: As `grants.levels_of` takes them.
        now_ms: Epoch milliseconds.
        start_ms: When it begins, epoch milliseconds; whole seconds are kept, as of the end.
        end_ms: When it ends.

    Raises:
        UsageError: If a value cannot be used.
    """
    [pattern] = grants.patterns_of([queue])
    start_s, end_s = start_ms // 1_000, -(-end_ms // 1_000)
    if end_ms <= max(start_ms, now_ms):
        raise UsageError("a signed url must end after its start, and later than now.")
    if end_ms - max(start_ms, now_ms) > LIFE_MS_MAX:
        raise UsageError("a signed url is valid for a year at the most; make a key for longer.")
    return UnverifiedUrl(key_id, pattern, grants.levels_of(levels), start_s, end_s)


def is_in_query(query: str) -> bool:
    """True if a query has the signature of a signed url."""
    return "sq-signature=" in query


def from_query(query: str) -> UnverifiedUrl:
    """The parts of a signed url.

    Raises:
        IncompleteSignature: If a part is missing or damaged.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_PARTS_MAX)
    except ValueError:
        pairs = []
    found = {name: value for name, value in pairs if name in _NAMES}
    given = [name for name, _ in pairs if name in _NAMES]
    if sorted(given) != sorted(_NAMES) or any(len(one) > _VALUE_MAX for one in found.values()):
        raise IncompleteSignature(f"a signed url has each of {', '.join(_NAMES)} once.")
    key_id, queue, levels, start, end, signature = (found[name] for name in _NAMES)
    if not (_is_time(start) and _is_time(end)):
        raise IncompleteSignature("sq-start and sq-end are whole epoch seconds.")
    return UnverifiedUrl(key_id, queue, levels, int(start), int(end), signature)


def _is_time(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
