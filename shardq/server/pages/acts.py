"""The actions of people on pages: each button is a form, and each form a call of `/v1`.

```
 form: act, back, token, fields ─► token, page, level ─► call of /v1, recorded ─► back, with its outcome
```
"""  # noqa: E501 - a drawing

from __future__ import annotations

import hmac
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from shardq.server.api.problem import Refused
from shardq.server.pages import deeds
from shardq.server.pages.dead import export_chosen
from shardq.server.pages.deeds import Form
from shardq.server.pages.leading import cleared, done
from shardq.server.pages.looks import Looks
from shardq.server.web import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.server.pages.page import Page

log = logging.getLogger(__name__)

_FIELDS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Act:
    """An action.

    Attributes:
        method: The method of its call.
        path: The path of its call below `/v1`; names in braces are fields of the form.
        said: The text of the page afterwards, with fields of the form or of the call's answer in
            braces; or a function that makes the text from both.
        body: Makes the call's body from the form; None: it has none.
    """

    method: str
    path: str
    said: str | Callable[[Mapping[str, Any], Form], str]
    body: Callable[[Form], Any] | None = None


def _some(*names: str) -> Callable[[Form], Any]:
    """A body with those fields of the form that are filled in."""
    return lambda form: {name: form[name] for name in names if form.get(name)}


_SCHEDULE = "queues/{queue}/schedules/{schedule}"
ACTS: dict[str, Act] = {
    "pause": Act("POST", "queues/{queue}/pause", "{queue} is paused."),
    "resume": Act("POST", "queues/{queue}/resume", "{queue} goes on."),
    "purge": Act("POST", "queues/{queue}/purge", "{queue} is purged."),
    "alter": Act(
        "PATCH",
        "queues/{queue}",
        "The settings of {queue} are changed.",
        lambda form: {name[8:]: one for name, one in form.items() if name.startswith("setting.")},
    ),
    "cancel-chosen": Act(
        "POST", "queues/{queue}/cancel", deeds.said_of_many("cancelled"), deeds.chosen
    ),
    "move-chosen": Act("POST", "queues/{queue}/move", deeds.said_of_many("moved"), deeds.moved),
    "run-chosen": Act(
        "POST", "queues/{queue}/move", deeds.said_of_many("due now"), deeds.moved_to_now
    ),
    "cancel": Act("DELETE", "queues/{queue}/messages/{message}", deeds.said_of_cancel),
    "run": Act(
        "PATCH", "queues/{queue}/messages/{message}", "It is due now.", lambda _: {"delay": "0s"}
    ),
    "move": Act("PATCH", "queues/{queue}/messages/{message}", "It is moved.", deeds.due),
    "edit": Act("PATCH", "queues/{queue}/keys/{key}", "Its body is changed.", deeds.new_body),
    "copy": Act(
        "POST",
        "queues/{queue}/messages/{message}/copy",
        "A copy is put, with the id {id}.",
        _some("delay"),
    ),
    "redrive-one": Act(
        "POST", "queues/{queue}/dead/{message}/redrive", "It is put back.", deeds.new_body
    ),
    "delete-one": Act("DELETE", "queues/{queue}/dead/{message}", "It is deleted for good."),
    "redrive-chosen": Act("POST", "dead/redrive", deeds.said_of_bulk, deeds.chosen_dead),
    "delete-chosen": Act("POST", "dead/delete", deeds.said_of_bulk, deeds.chosen_dead),
    "redrive-matching": Act("POST", "dead/redrive", deeds.said_of_bulk, deeds.matching),
    "delete-matching": Act("POST", "dead/delete", deeds.said_of_bulk, deeds.matching_surely),
    "stop-bulk": Act("POST", "dead/bulks/{bulk}/stop", "It stops; {done} of {found} are done."),
    "search": Act("POST", "find/searches", deeds.said_of_search, _some("q", "queue")),
    "stop-search": Act("POST", "find/searches/{search}/stop", "The search stops."),
    "schedule-pause": Act("POST", f"{_SCHEDULE}/pause", "{schedule} is paused."),
    "schedule-resume": Act("POST", f"{_SCHEDULE}/resume", "{schedule} goes on."),
    "schedule-run": Act(
        "POST", f"{_SCHEDULE}/run", "{schedule} was run: its message is stored, as {id}."
    ),
    "schedule-backfill": Act(
        "POST",
        f"{_SCHEDULE}/backfill",
        "{count} messages of {schedule} were put.",
        _some("after", "until"),
    ),
    "schedule-remove": Act("DELETE", _SCHEDULE, "{schedule} is removed."),
}


async def act(page: Page) -> Response:
    """Carry an action out, and lead back to the page that it was given on.

    Raises:
        Refused: If the form is not one of this server for this person.
    """
    request = page.request
    fields = parse_qs(
        request.body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS_MAX
    )
    form = Form(fields)
    name, back = form.get("act", ""), form.get("back", "/")
    _check_origin(page)
    if not hmac.compare_digest(form.get("token", "").encode(), page.session.token.encode()):
        _refuse(page, name, "the form is not one of this page for you; reload the page")
    if name == "sign-out":
        return cleared(request, page.base)
    if name == "export":
        return await export_chosen(page, form.chosen())
    if page.site.options.is_read_only:
        _refuse(page, name, "these pages are read-only")
    wanted = ACTS.get(name)
    if wanted is None:
        raise Refused(400, f"there is no action {name[:50]!r}.")
    parts = [
        form.get(part[1:-1], "") if part.startswith("{") else part
        for part in wanted.path.split("/")
    ]
    try:
        body = None if wanted.body is None else wanted.body(form)
        answer = await page.call(wanted.method, *parts, body=body)
    except Refused as error:
        if error.status in {401, 403}:
            log.warning("pages: %s of %s is refused: %s", name, page.session.caller.who, error)
        return done(page, back, f"Not done: {error.detail}")
    # The next page shows the change.
    page.site.own(Looks).change()
    told = answer if isinstance(answer, dict) else {}
    said = wanted.said
    text = said.format_map({**told, **form}) if isinstance(said, str) else said(told, form)
    return done(page, back, text)


def said_of(cookie: str) -> str | None:
    """The outcome of the last action, from a cookie; None without one."""
    return unquote(cookie) or None


def _check_origin(page: Page) -> None:
    """Refuse a form of another site's page.

    Raises:
        Refused: If it is such a form.
    """
    headers, host = page.request.headers, page.request.host
    origin = headers.get("origin")
    is_same = origin is None or origin.partition("://")[2] == host
    if not is_same or headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        _refuse(page, "form", f"it comes from another site, {(origin or 'unknown')[:100]}")


def _refuse(page: Page, name: str, why: str) -> None:
    """Refuse an action, and log its caller.

    Raises:
        Refused: Always.
    """
    caller = page.session.caller
    log.warning("pages: %r by %s from %s is refused: %s", name, caller.who, caller.client, why)
    raise Refused(403, f"Nothing was done: {why}.")
