"""The path of a request for a page: to its session, its page, its template."""

from __future__ import annotations

import hashlib
import logging
from functools import lru_cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from markupsafe import escape

from shardq.errors import MissingExtra, ShardqError
from shardq.model.times import span
from shardq.server.api.problem import Refused, problem_of
from shardq.server.api.reading import prefix_and_parts
from shardq.server.pages import acts, live, markup, table
from shardq.server.pages.leading import SAID, cookie, local, to
from shardq.server.pages.page import Page, Template
from shardq.server.refusals import Refusal
from shardq.server.sessions import COOKIE, LIFE_S, cookie_of
from shardq.server.web import Response, TooMany

try:
    import jinja2
except ImportError as error:
    raise MissingExtra("pages need Jinja2; install it: pip install 'shardq[server]'.") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.server.access import PageSession
    from shardq.server.site import Site
    from shardq.server.web import Headers, Request

log = logging.getLogger(__name__)

_HTML = "text/html; charset=utf-8"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_SAFE: Headers = [
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
]
_MEDIA = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FIELDS_MAX = 100


def is_page(request: Request, base: str) -> bool:
    """True if a request is for a page, or for the front page from a browser."""
    path = request.path
    if path == base or path.startswith(f"{base}/"):
        return True
    wants_page = "text/html" in request.headers.get("accept", "")
    return path == "/" and request.method == "GET" and wants_page and "Action=" not in request.query


async def answer(request: Request, site: Site) -> Response:
    """Answer a request for a page."""
    made = await _answered(request, site)
    made.headers = [*made.headers, *(one for one in _SAFE if one[0] not in dict(made.headers))]
    return made


def refusal(request: Request, status: int, code: str, text: str) -> Response:  # noqa: ARG001
    """The answer to a request that the server refuses, or fails at."""
    page = f"<!doctype html><title>shardq</title><p>{escape(text)}"
    return Response(status, page.encode(), [("content-type", _HTML), *_SAFE])


async def _answered(request: Request, site: Site) -> Response:
    base = site.options.pages or ""
    prefix, parts = prefix_and_parts(request)
    # The parts are encoded, because a message's id may hold a slash.
    path = "".join(f"/{quote(part, safe='')}" for part in parts).removeprefix(base)
    root = prefix + base
    if path == "" or (request.path == "/" and base):
        return to(f"{root}/")
    try:
        return await _of_path(request, site, root, path)
    except (Refused, ShardqError, TooMany) as error:
        return _refused(site, root, request, error)


async def _of_path(request: Request, site: Site, root: str, path: str) -> Response:
    is_read = request.method in {"GET", "HEAD"}
    if path.startswith("/static/") and is_read:
        return _static(path.removeprefix("/static/"))
    if path == "/sign-in":
        return await _sign_in(request, site, root)
    session = await _session(request, site)
    if session is not None:
        return await _shown(request, site, session, root, path)
    if not is_read:
        raise Refused(401, "Sign in first: the action was not done.")
    back = quote(path + (f"?{request.query}" if request.query else ""), safe="")
    return to(f"{root}/sign-in?back={back}")


def _refused(site: Site, root: str, request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        log.warning("pages: %s %s from %s: %s", request.method, request.path, request.client, error)
    problem = problem_of(error)  # type: ignore[arg-type] # each is one of its kinds
    return _told(site, root, None, problem.status, problem.detail)


async def _session(request: Request, site: Site) -> PageSession | None:
    access = site.access
    if access is None:
        raise Refused(404, "there are no pages here.")
    found = cookie_of(request.headers.get("cookie", ""))
    return await site.threads.call(
        partial(access.session_of, request, found, site.options.user_levels)
    )


async def _shown(
    request: Request, site: Site, session: PageSession, root: str, path: str
) -> Response:
    given = parse_qsl(request.query, keep_blank_values=False, max_num_fields=_FIELDS_MAX)
    query = {name: "".join(filter(str.isprintable, value)) for name, value in given}
    is_live = query.pop("live", "") == "1"
    if request.method == "POST":
        page = Page(request, site, session, root, path, {}, {})
        return await acts.act(page)
    found = table.found(path)
    if found is None or request.method not in {"GET", "HEAD"}:
        raise Refused(404, f"there is no page {path}.")
    handler, place = found
    page = Page(request, site, session, root, path, place, query)
    if is_live:
        return live.stream(page, partial(_live, handler))
    template = await handler(page)
    if isinstance(template, Response):
        return template
    said = cookie_of(request.headers.get("cookie", ""), SAID)
    html = rendered(template, values_of(page) | {"said": acts.said_of(said)})
    made = Response(200, html.encode("utf-8", "replace"), [("content-type", _HTML)])
    if said:
        made.headers.append(cookie(SAID, "", root, request, 0))
    return made


async def _live(handler: Any, page: Page) -> str:
    """The part of a page that changes while somebody looks at it."""
    try:
        template = await handler(page)
    except Refused as error:
        return str(escape(error.detail))
    if not isinstance(template, Template):
        return ""
    found = _environment().get_template(f"{template.name}.html")
    context = found.new_context({**values_of(page), **template.values, "said": None})
    return "".join(found.blocks["live"](context))


async def _sign_in(request: Request, site: Site, root: str) -> Response:
    form = dict(parse_qsl(request.query, max_num_fields=_FIELDS_MAX))
    back = local(form.get("back", "/"))
    if request.method == "POST" and site.access is not None:
        form = dict(parse_qsl(request.body.decode("latin-1"), max_num_fields=_FIELDS_MAX))
        back = local(form.get("back", "/"))
        try:
            signed = await site.threads.call(
                partial(site.access.sign_in, request, form.get("key", ""))
            )
        except Refusal as error:
            log.warning("pages: a sign-in from %s is refused: %s", request.client, error)
            return _told(site, root, back, error.status, str(error), name="sign-in")
        made = to(root + back, 303)
        made.headers.append(cookie(COOKIE, signed, root, request, LIFE_S))
        return made
    return _told(site, root, back, 200, "", name="sign-in")


def _told(
    site: Site, root: str, back: str | None, status: int, text: str, *, name: str = "problem"
) -> Response:
    """A page without a session: a problem, or the sign-in."""
    values = {
        "page": None,
        "base": root,
        "back": back or "/",
        "text": text,
        "now_ms": site.clock.now_ms(),
        "said": None,
    }
    html = rendered(Template(name), values)
    return Response(status, html.encode("utf-8", "replace"), [("content-type", _HTML)])


def values_of(page: Page) -> dict[str, Any]:
    """The values that each template may show."""
    return {"page": page, "base": page.base, "now_ms": page.site.clock.now_ms(), "text": ""}


def rendered(template: Template, values: Mapping[str, Any]) -> str:
    """A page as HTML."""
    return (
        _environment().get_template(f"{template.name}.html").render({**values, **template.values})
    )


@lru_cache(1)
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("shardq.server.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": markup.count,
        "rate": markup.rate,
        "span": span,
        "printable": markup.printable,
    }
    made.globals |= {"moment": markup.moment, "exact": markup.exact, "static": static_url}
    return made


def static_url(base: str, name: str) -> str:
    """The url of a file of the pages, which changes with its content."""
    return f"{base}/static/{name}?v={_file(name)[1]}"


def _static(name: str) -> Response:
    if name not in _names():
        return Response(404, b"not found\n", [("content-type", "text/plain")])
    content, _ = _file(name)
    media = _MEDIA[name.rpartition(".")[2]]
    kept = ("cache-control", "public, max-age=31536000, immutable")
    return Response(200, content, [("content-type", media), kept])


@lru_cache(1)
def _names() -> frozenset[str]:
    return frozenset(
        one.name
        for one in (files("shardq.server.pages") / "static").iterdir()
        if one.name.rpartition(".")[2] in _MEDIA
    )


@lru_cache(32)
def _file(name: str) -> tuple[bytes, str]:
    content = (files("shardq.server.pages") / "static" / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]
