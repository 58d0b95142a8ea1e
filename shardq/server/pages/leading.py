"""Answers that lead to another page, and the cookies that they set."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from shardq.server.sessions import COOKIE
from shardq.server.web import Response

if TYPE_CHECKING:
    from shardq.server.pages.page import Page
    from shardq.server.web import Request

SAID = "shardq-said"
"""The cookie with the outcome of the last action, which the next page shows."""
_CHARS_MAX = 1_000


def local(path: str) -> str:
    """A path of this server alone, below the front page; else the front page."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/"


def cleared(request: Request, root: str) -> Response:
    """The answer to a sign-out."""
    made = to(f"{root}/sign-in", 303)
    made.headers.append(cookie(COOKIE, "", root, request, 0))
    return made


def done(page: Page, back: str, said: str) -> Response:
    """The answer to an action: leads back to the page of its form, which shows the outcome."""
    made = to(page.base + local(back), 303)
    text = quote(said[:_CHARS_MAX], safe="")
    made.headers.append(cookie(SAID, text, page.base, page.request, 60))
    return made


def cookie(name: str, value: str, root: str, request: Request, life_s: int) -> tuple[str, str]:
    """The header that sets a cookie of the pages."""
    # Lax, not Strict: a link in an alert leads to a page, and forms need a token anyway.
    text = f"{name}={value}; Path={root or '/'}; Max-Age={life_s}; HttpOnly; SameSite=Lax"
    return "set-cookie", text + ("; Secure" if request.scheme == "https" else "")


def to(url: str, status: int = 302) -> Response:
    """The answer that redirects to a url."""
    return Response(status, b"", [("location", url)])
