"""A shop whose queues have what pages show: late, running, retried, dead, paused, to come."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from hosted import hosted

import shardq
from shardq.clock import SystemClock
from shardq.records.actions import Actions, What
from shardq.server import application
from shardq.server.access import Access
from shardq.server.accounts import Accounts
from shardq.server.site import SiteOptions
from shardq.tasks import Task, current
from shardq.tasks.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.server.accounts import IssuedKey

_HOUR_US = 3_600_000_000
_AT_ONCE = 6
"""Threads of the worker."""


@dataclass
class Shop:
    """A store that is served.

    Attributes:
        db: A connection to it.
        url: Its pages.
        key: What the operator signs in with.
        ids: Messages by what they are, `dead` say.
        stopped: Ids of runs that noticed their cancel.
        closing: Set at the end: what runs ends.
    """

    db: shardq.Connection
    url: str
    key: IssuedKey
    ids: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


class _Behind(SystemClock):
    """A clock that is wrong on purpose."""

    def check(self, offset_ms: int) -> None:
        pass


class PaymentDeclined(Exception):
    """What a task raises."""

    __module__ = "shop"


@contextmanager
def served(url: str, **options: object) -> Iterator[Shop]:
    """Serve a store; its operator, ada, may do everything."""
    with shardq.connect(url) as db:
        home = Accounts(db._home.store, db._home.clock)
        key = home.add_key(home.create("shop"), levels="all", label="ada")
        app = application(db, options=SiteOptions(**options), access=Access(db))  # type: ignore[arg-type]
        with hosted(app) as at:
            yield Shop(db, f"{at}/pages", key)


@contextmanager
def opened(url: str) -> Iterator[Shop]:
    """Open the shop: hours have passed, a worker runs, an operator has been at work."""
    with ExitStack() as stack:
        shop = stack.enter_context(served(url))
        if url.startswith("sqlite:"):
            # Cassandra's nodes, whose time others measure too, would be contradicted.
            behind = _Behind(-3 * _HOUR_US, corrected=False)
            with shardq.connect(url, clock=behind) as before:
                _morning(shop, before)
        else:
            _morning(shop, shop.db)
        _now(shop)
        _operator(shop)
        stack.callback(shop.closing.set)
        stack.enter_context(_working(shop))
        yield shop


def _morning(shop: Shop, db: shardq.Connection) -> None:
    """What has failed, and what was put while its queue is paused."""
    app, charge, send, _ = _app(shop, db)
    for order in (1_031, 1_044, 1_058):
        charge.put(order, "declined")
    for number in range(40):
        name = f"customer-{number}@{'example' if number % 4 else 'old-example'}.org"
        send.put(name, "disconnected" if number % 4 else "timeout")
    shop.ids["dead"] = charge.put(1_072, "declined", note="gift").id
    for number in range(300):
        send.put(f"reader-{number}@example.org", "")
    Worker(app, threads=_AT_ONCE).run(until_empty=True)
    db.queue("invoices", history="7d").put_many(
        {"body": f'{{"invoice": {number}, "total": "{number * 7}.00"}}'} for number in range(12)
    )


def _now(shop: Shop) -> None:
    """What waits, what was retried, what nobody reads, and schedules."""
    db = shop.db
    orders, mail = db.queue("orders"), db.queue("mail")
    orders.put_many(
        {"body": f'{{"order": {number}}}', "delay": f"{60 + number * number // 3}s"}
        for number in range(240)
    )
    orders.put_many({"body": f'{{"order": {number}}}', "delay": "5h"} for number in range(90))
    shop.ids["waiting"] = orders.put(
        '{"order": 2001, "to": {"name": "Ada", "city": "London"}, "items": [7, 9]}',
        key="order-2001",
        group="customer-17",
        delay="2h",
        headers={"lang": "en", "source": "web"},
    ).id
    retried = db.queue("exports", history="7d", attempts=5)
    shop.ids["failed"] = retried.put("all orders of May", group="warehouse").id
    shop.ids["behind"] = retried.put("all orders of June", group="warehouse").id
    pictures = db.queue("pictures")
    pictures.limit("print-*", rate="4/h")
    pictures.put_many({"body": f"page {number}", "group": "print-7"} for number in range(9))
    shop.ids["limited"] = pictures.put("page 9", group="print-7").id
    shop.ids["paused"] = retried.put("orders of a customer", group="eu-7").id
    retried.pause(group="eu-*")
    [taken] = retried.receive(max=1, visibility="60s")
    retried.retry(taken, delay="20m", reason="ConnectionRefusedError: warehouse:5432 refused it")
    db.queue("thumbnails").put_many({"body": f"picture-{number}.png"} for number in range(40))
    mail.cron("0 7 * * mon-fri", "digest", name="digest", tz="Europe/Berlin")
    mail.every("6h", "bounces", name="collect bounces")
    reports = db.queue("reports", history="7d")
    reports.cron(
        "30 2 * * *", '{"report": "nightly"}', name="nightly", tz="America/New_York", twice="both"
    )
    billing = reports.cron("0 9 1 * *", "bill", name="billing", count=12)
    billing.pause()
    reports.every("15m", "stock", name="stock").run()
    db.queue("invoices").pause()


def _operator(shop: Shop) -> None:
    """The log of what ada, and a script, did."""
    log = Actions(shop.db._home.store, shop.db._home.clock)
    ada = f"000000000000/{shop.key.key.id} (ada)"
    log.record("bob", "shell", What.ALTER, "orders")
    log.record("bob", "shell", What.PURGE, "orders", "AccessDenied")
    log.record(ada, "pages", What.PAUSE, "invoices")


class Tasks(NamedTuple):
    """The shop's app and its tasks."""

    app: shardq.App
    charge: Task[..., None, None]
    send: Task[..., None, None]
    resize: Task[..., None, None]


def _app(shop: Shop, db: shardq.Connection) -> Tasks:
    app = shardq.App(db, attempts=1, keep="1h")
    for name in ("orders", "mail", "pictures"):
        db.queue(name, history="7d")

    @app.task(name="shop.charge", queue="orders")
    def charge(order: int, outcome: str, *, note: str = "") -> None:
        if outcome:
            _decline(order)

    @app.task(name="shop.send", queue="mail")
    def send(to: str, outcome: str) -> None:
        if outcome == "timeout":
            raise TimeoutError(f"smtp.old-example.org did not answer for {to} in 30 s")
        if outcome:
            raise ConnectionResetError(f"smtp.example.org closed the connection for {to}")

    @app.task(name="shop.resize", queue="pictures", key="resize {picture}")
    def resize(picture: str) -> None:
        current().progress(0.4, "reading")
        while not shop.closing.wait(0.05):
            if current().is_cancelled:
                shop.stopped.append(current().id)
                return

    return Tasks(app, charge, send, resize)


def _decline(order: int) -> NoReturn:
    raise PaymentDeclined(f"order {order}: the bank declined the card; its answer was 51")


@contextmanager
def _working(shop: Shop) -> Iterator[None]:
    """A worker whose handlers are half busy."""
    app, _, _, resize = _app(shop, shop.db)
    for number in range(3):
        shop.ids["running"] = resize.put(f"picture-{number}.png").id
    worker = Worker(app, threads=_AT_ONCE, queues=["mail", "pictures"])
    thread = threading.Thread(target=worker.run, name="shop")
    thread.start()
    yield
    shop.closing.set()
    worker.stop()
    thread.join(60)
