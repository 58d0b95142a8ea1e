"""Cookies of people who have signed in to pages by a key, and the tokens of their forms.

```
 key ─► sign in ─► cookie: key, generation of its secret, end, signature ─► Session
```

Each server of the store accepts the cookie. It ends with its key, with its secret, or in 12 hours.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shardq.server.masterkey import MasterKey

COOKIE: Final = "shardq"
LIFE_S = 12 * 3_600
_PARTS = 4
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True)
class Pass:
    """The content of a cookie.

    Attributes:
        key_id: The key by which the person signed in.
        generation: The generation of its secret then.
        end_s: When the cookie ends, epoch seconds.
        signature: The signature; empty until it is signed.
    """

    key_id: str
    generation: int
    end_s: int
    signature: str = ""

    @classmethod
    def of(cls, text: str) -> Pass | None:
        """The pass of a cookie's text; None if the text is no pass."""
        parts = text.split(".")
        if len(text) > _TEXT_MAX or len(parts) != _PARTS:
            return None
        key_id, generation, end, signature = parts
        if not (generation.isascii() and generation.isdigit() and end.isascii() and end.isdigit()):
            return None
        return cls(key_id, int(generation), int(end), signature)

    def signed(self, master: MasterKey) -> str:
        """The cookie's text."""
        return f"{self._text}.{_signature(master, self, self._text)}"

    def is_valid(self, master: MasterKey) -> bool:
        """True if a server of this store signed it; compared in constant time."""
        expected = _signature(master, self, self._text)
        return hmac.compare_digest(expected.encode(), self.signature.encode())

    @property
    def _text(self) -> str:
        return f"{self.key_id}.{self.generation}.{self.end_s}"


def _signature(master: MasterKey, one: Pass, text: str) -> str:
    key = master.derive("session", one.key_id, one.generation)
    digest = hmac.digest(key, text.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def token_of(master: MasterKey, whose: str) -> str:
    """The token that each form of a person's pages sends, to prove that it is from a page of ours.

    All servers of a store make the same token.

    Args:
        master: The master key.
        whose: The person's cookie, or the name that a proxy gave.
    """
    digest = hmac.digest(master.derive("form", "", 0), whose.encode(), "sha256")
    return base64.urlsafe_b64encode(digest[:18]).decode()


def cookie_of(header: str, name: str = COOKIE) -> str:
    """The value of a cookie in a header `Cookie`; empty without it.

    >>> cookie_of("a=1; shardq=x.1.2.y")
    'x.1.2.y'
    """
    for part in header.split(";"):
        found, _, value = part.strip().partition("=")
        if found == name:
            return value
    return ""
