"""Each page, and the facts that it has to show in every mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from browser.shop import Shop


class Shown(NamedTuple):
    """A page.

    Attributes:
        path: Its path; names in braces are messages of the shop.
        facts: Texts that it has to show.
        needs_session: False if it is shown to whoever has not signed in.
        status: The status of its answer.
    """

    path: str
    facts: tuple[str, ...]
    needs_session: bool = True
    status: int = 200

    def path_in(self, shop: Shop) -> str:
        return self.path.format_map(shop.ids)


SHOWN = {
    "queues": Shown("/", ("orders", "mail 0 0", "invoices paused 12", "no worker", "Pause")),
    "message": Shown(
        "/queues/orders/messages/{waiting}",
        ("waiting", "order-2001", "customer-17", '"city": "London"', "source", "web", "Run now"),
    ),
    "dead": Shown(
        "/dead",
        ("PaymentDeclined", "the bank declined the card", "shop.charge", "TimeoutError", "Redrive"),
    ),
    "queue": Shown("/queues/mail", ("Ready", "Buried", "Consumers", "0 of 6", "visibility")),
    "messages": Shown("/queues/orders/messages", ('{ "order": 3 }', "Next page", "Cancel")),
    "retried": Shown(
        "/queues/exports/messages?error=refused", ("warehouse:5432 refused it", "all orders of May")
    ),
    "running": Shown(
        "/queues/pictures/messages/{running}", ("running", "shop.resize", "40 %", "Held by")
    ),
    "behind": Shown("/queues/exports/messages/{behind}", ("warehouse", "Waits behind")),
    "limited": Shown(
        "/queues/pictures/messages/{limited}", ("limited", "Limit of its group", "1 place, 4/h")
    ),
    "group paused": Shown("/queues/exports/messages/{paused}", ("paused", "Paused by", "eu-*")),
    "failed": Shown(
        "/queues/exports/messages/{failed}", ("Failed", "warehouse:5432 refused it", "in back-off")
    ),
    "dead message": Shown(
        "/queues/orders/messages/{dead}",
        ("Why it died", "its answer was 51", "raise PaymentDeclined", "Edit and redrive", '"gift"'),
    ),
    "gone": Shown("/queues/orders/messages/none", ("nothing is known of message",)),
    "dead by error": Shown(
        "/dead?error=TimeoutError&queue=mail", ("did not answer for", "shop.send", "Show all")
    ),
    "find": Shown("/find?q=order-2001", ("key", "customer-17", "orders")),
    "find text": Shown("/find?q=London&by=text", ("customer-17", "were looked at")),
    "workers": Shown(
        "/workers", ("shop.resize", "pictures", "3 of 6", "no worker reads", "Cancel")
    ),
    "actions": Shown("/actions", ("pause", "invoices", "(ada)", "bob", "AccessDenied")),
    "to come": Shown("/calendar", ("firings of schedules", "Fullest minutes", "orders")),
    "90 days": Shown("/calendar?span=90d", ("Fullest days", "reports")),
    "schedules": Shown("/schedules", ("nightly", "collect bounces", "paused", "Run now")),
    "schedule": Shown(
        "/queues/reports/schedules/nightly", ("America/New_York", "02:30", "Last firings", "Pause")
    ),
    "sign in": Shown("/sign-in", ("Key", "shardq accounts key add"), needs_session=False),
    "problem": Shown("/queues/none", ("there is no queue",), status=404),
}
"""Name of a picture -> what it shows."""
GATE = ("queues", "message", "dead")
"""The pictures that every change has to pass."""
