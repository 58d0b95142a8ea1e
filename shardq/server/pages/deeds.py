"""The bodies that forms about messages send to `/v1`, and the texts about the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.server.api.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


FILTERS = ("queue", "task", "error", "body", "text", "since", "until")
"""The filters of dead messages, which forms pass on."""


class Form(dict[str, str]):
    """The fields of a form, each with its last value.

    Attributes:
        every: All values of each field.
    """

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        super().__init__({name: values[-1] for name, values in fields.items()})
        self.every = fields

    def chosen(self) -> list[str]:
        """The rows of a list that are chosen.

        Raises:
            Refused: If none is.
        """
        rows = self.every.get("id", [])
        if not rows:
            raise Refused(400, "choose at least one line of the list.")
        return rows


def chosen(form: Form) -> Any:
    """The messages that are chosen in a list."""
    return {"ids": form.chosen()}


def due(form: Form) -> Any:
    """When a message is to be due: after a delay, or at a time in UTC."""
    delay, at = form.get("delay", ""), form.get("due", "")
    if bool(delay) == bool(at):
        raise Refused(400, "give a delay or a time, one of them.")
    return {"delay": delay} if delay else {"due": in_utc(at)}


def in_utc(text: str) -> str:
    """A time of a form, which has no zone, in UTC.

    >>> in_utc("2027-01-01T09:00"), in_utc("2027-01-01T09:00Z")
    ('2027-01-01T09:00Z', '2027-01-01T09:00Z')
    """
    has_zone = text[-1:] in "Zz" or "+" in text or "-" in text.partition("T")[2]
    return text if has_zone else f"{text}Z"


def moved(form: Form) -> Any:
    """The messages that are chosen, and when they are to be due."""
    return {**chosen(form), **due(form)}


def moved_to_now(form: Form) -> Any:
    """The messages that are chosen, to be due now."""
    return {**chosen(form), "delay": "0s"}


def new_body(form: Form) -> Any:
    """The new body of a message; empty if the form has none.

    Browsers send each end of a line as two characters; bodies have one.
    """
    return {"body": form["body"].replace("\r\n", "\n")} if "body" in form else {}


def chosen_dead(form: Form) -> Any:
    """The dead messages that are chosen, each as `QUEUE/ID`."""
    pairs = [one.partition("/") for one in form.chosen()]
    return {"messages": [{"queue": queue, "id": name} for queue, _, name in pairs]}


def matching(form: Form) -> Any:
    """The filters of the dead messages, and the rate."""
    given: dict[str, Any] = {name: form[name] for name in FILTERS if form.get(name)}
    if rate := form.get("rate", ""):
        if not (rate.isascii() and rate.isdigit() and len(rate) < 10):
            raise Refused(400, f"the rate must be a number, not {rate[:50]!r}.")
        given["rate"] = int(rate)
    return given


def matching_surely(form: Form) -> Any:
    """The filters of dead messages that are to be deleted, once that is confirmed.

    Raises:
        Refused: If it is not.
    """
    if form.get("sure") != "yes":
        raise Refused(400, "tick “for good” to delete all that match.")
    return matching(form)


def said_of_many(what: str) -> Callable[[Mapping[str, Any], Form], str]:
    """The text about a command for several messages."""

    def said(told: Mapping[str, Any], _: Form) -> str:
        answers = list(told["answers"].values())
        text = f"{told['done']} of {told['asked']} messages are {what}."
        if running := answers.count("running"):
            how = "asked to stop" if what == "cancelled" else "left as they were"
            text += f" {running} are running, and {how}."
        if gone := answers.count("not there"):
            text += f" {gone} are not there any more."
        return text

    return said


def said_of_cancel(told: Mapping[str, Any], form: Form) -> str:
    """The text about a cancel."""
    if told["answer"] == "running":
        return "It is running: it is asked to stop, and never runs again."
    if form.get("where") == "running":
        return "It never runs again. This run goes on: only one with a key can be asked to stop."
    return "It is cancelled."


def said_of_bulk(told: Mapping[str, Any], _: Form) -> str:
    """The text about a bulk action that has begun, or has ended already."""
    done = "put back" if told["what"] == "redrive" else "deleted"
    if told["state"] in {"looking", "running", "waiting"}:
        return f"It has begun: {told['done']} of {told['found']} so far are {done}."
    if not told["found"]:
        return "No dead message matches: nothing was done."
    text = f"{told['done']} of {told['found']} dead messages are {done}."
    if told.get("gone"):
        text += f" {told['gone']} were not there any more."
    if told.get("kept"):
        text += f" {told['kept']} stay: {told.get('error', '')}"
    return text if told["state"] == "done" else f"{text} It has {told['state']}."


def said_of_search(answer: Mapping[str, Any], _form: Form) -> str:
    """The text about a search that has begun."""
    if answer["hits"]:
        return "It is found."
    return "It is nowhere." if answer["state"] == "done" else "The search goes on."
