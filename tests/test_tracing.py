"""Traces: puts that carry theirs, runs that are linked to them, and logs with the ids of a run."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from apps import states, worked
from callers import Api, play
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id
from placed import Place, placed

import shardq
from shardq import App, Bury, Consumer, Retry, Snooze, aio
from shardq.errors import BadSetting, UsageError
from shardq.logs import RunIds
from shardq.tasks import Worker
from shardq.testing import Stage
from shardq.tracing import Traces, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from shardq import Connection, Message

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


class Tracing:
    """An SDK that keeps all spans."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._kept = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("test")
        self.traces = self.made()

    def made(self, *, parent: bool = False) -> Traces:
        return Traces(parent=parent, tracer_provider=self.provider)

    def connect(self, url: str = "sqlite://", *, parent: bool = False) -> Connection:
        return shardq.connect(url, traces=self.made(parent=parent))

    def within(self, name: str = "request") -> Any:
        """A span of the user's, which is current meanwhile."""
        return self.tracer.start_as_current_span(name)

    def spans(self, operation: str) -> list[ReadableSpan]:
        """The spans of an operation that have ended, in the order of their ends."""
        every = self._kept.get_finished_spans()
        return [one for one in every if one.name.partition(" ")[0] == operation]


@pytest.fixture
def tracing() -> Tracing:
    return Tracing()


def place(span: Any) -> tuple[int, int]:
    """The trace and the span that a span, a link or a parent is."""
    context = getattr(span, "context", span)
    return context.trace_id, context.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [place(link) for link in span.links]


def parent_of(message: Message) -> tuple[int, int]:
    _, trace_id, span_id, _ = message.headers["traceparent"].split("-")
    return int(trace_id, 16), int(span_id, 16)


def drain(queue: shardq.Queue, act: Any = lambda _message: None) -> None:
    Consumer(queue, act, threads=1).run(until_empty=True)


# Puts and runs ------------------------------------------------------------------------------------


def test_a_run_is_a_trace_of_its_own_with_a_link_to_the_put(tracing: Tracing) -> None:
    current: list[tuple[int, int]] = []
    with tracing.connect() as db:
        mail = db.queue("mail")
        with tracing.within() as request:
            message = mail.put("hello", headers={"lang": "de"})
        drain(mail, lambda _: current.append(place(trace.get_current_span().get_span_context())))
    [send], [run] = tracing.spans("send"), tracing.spans("process")
    assert (send.name, send.kind, place(send.parent)) == (
        "send mail",
        SpanKind.PRODUCER,
        place(request),
    )
    assert parent_of(message) == place(send)
    assert message.headers["lang"] == "de"
    assert (run.name, run.kind, run.parent, links(run)) == (
        "process mail",
        SpanKind.CONSUMER,
        None,
        [place(send)],
    )
    assert current == [place(run)]
    assert place(run)[0] != place(send)[0]
    common = {"messaging.system": "shardq", "messaging.destination.name": "mail"}
    assert send.attributes == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.id": message.id,
    }
    assert run.attributes == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": message.id,
        "shardq.attempt": 1,
    }
    assert run.status.is_ok or run.status.status_code is StatusCode.UNSET


def test_with_parent_a_run_continues_the_trace_of_the_put(tracing: Tracing) -> None:
    with tracing.connect(parent=True) as db:
        mail = db.queue("mail")
        with tracing.within() as request:
            mail.put("hello")
        mail.put("nobody's")
        drain(mail)
    [send] = tracing.spans("send")
    first, second = tracing.spans("process")
    assert (place(first.parent), links(first)) == (place(send), [])
    assert place(first)[0] == place(request)[0]
    assert (second.parent, links(second)) == (None, [])


def test_a_put_outside_of_a_span_carries_nothing_and_its_run_has_no_link(tracing: Tracing) -> None:
    with tracing.connect() as db:
        mail = db.queue("mail")
        assert mail.put("hello").headers == {}
        mail.put_many(["a", b"b"])
        drain(mail)
    assert tracing.spans("send") == []
    assert [links(run) for run in tracing.spans("process")] == [[], [], []]


def test_without_traces_nothing_is_carried_though_a_span_is_current(tracing: Tracing) -> None:
    with shardq.connect("sqlite://") as db, tracing.within():
        assert db.queue("mail").put("hello").headers == {}


def test_all_messages_of_a_put_many_carry_its_one_span(tracing: Tracing) -> None:
    own = {"traceparent": PARENT}
    with tracing.connect() as db:
        mail = db.queue("mail")
        with tracing.within():
            again = mail.put("again", due="2100-01-01T00:00:00Z")
            kinds = [b"bytes", "text", {"body": "a", "headers": {"lang": "de"}}, {"body": "b"}]
            assert mail.put_many([*kinds, again, {"body": "own", "headers": own}]) == 6
            partial = mail.put_many([{"body": "c", "once": "c"}, {"body": 1}], partial=True)
        found = {message.text: message for message in mail.peek(10)}
    one, many, each = tracing.spans("send")
    assert {parent_of(found[text]) for text in ("bytes", "text", "a", "b")} == {place(many)}
    assert found["a"].headers["lang"] == "de"
    assert (parent_of(found["again"]), found["own"].headers) == (place(one), own)
    assert many.attributes is not None
    assert many.attributes["messaging.batch.message_count"] == 6
    assert parent_of(found["c"]) == place(each)
    assert isinstance(partial[1], shardq.errors.BadBody)


@pytest.mark.parametrize("items", ["text", {"body": "a"}, 5])
def test_what_cannot_be_put_is_refused_within_a_span_as_without(
    tracing: Tracing, items: Any
) -> None:
    with tracing.connect() as db, tracing.within():
        mail = db.queue("mail")
        with pytest.raises(UsageError, match="put_many takes an iterable"):
            mail.put_many(items)
        with pytest.raises(shardq.errors.BadBody, match="headers must map"):
            mail.put("a", headers=5)  # type: ignore[arg-type]
        with pytest.raises(shardq.errors.BadBody, match="headers must map"):
            mail.put_many([{"body": "a", "headers": [1]}])
        assert mail.peek() == []
    assert all(send.status.status_code is StatusCode.ERROR for send in tracing.spans("send"))


def test_each_attempt_is_a_run_and_only_a_failure_is_an_error(tracing: Tracing) -> None:
    asked = [Snooze("1ms"), ValueError("no route"), Retry("1ms", "busy"), Bury("no such user")]

    def act(_message: Message) -> None:
        raise asked.pop(0)

    with tracing.connect() as db:
        mail = db.queue("mail", backoff="1ms")
        with tracing.within():
            mail.put("hello")
        drain(mail, act)
    [send], runs = tracing.spans("send"), tracing.spans("process")
    found = [(run.attributes or {}) for run in runs]
    assert [one["shardq.attempt"] for one in found] == [1, 1, 2, 3]
    assert [one.get("error.type") for one in found] == [
        None,
        "ValueError",
        "shardq.engine.handing.outcome.Retry",
        "shardq.engine.handing.outcome.Bury",
    ]
    assert [run.status.status_code is StatusCode.ERROR for run in runs] == [False, True, True, True]
    assert [event.name for event in runs[1].events] == ["exception"]
    assert all(links(run) == [place(send)] for run in runs)
    assert len({place(run)[0] for run in runs}) == 4


def test_a_run_of_a_future_ends_with_its_work(tracing: Tracing) -> None:
    def work() -> None:
        raise KeyError("user")

    with ThreadPoolExecutor(1) as pool, tracing.connect() as db:
        mail = db.queue("mail", attempts=1)
        mail.put("hello")
        drain(mail, lambda _: pool.submit(work))
    assert {(run.attributes or {})["error.type"] for run in tracing.spans("process")} == {
        "KeyError"
    }


@pytest.mark.parametrize("parent", ["", "00-x", PARENT.replace("a", "0"), PARENT + "-more"])
def test_a_damaged_traceparent_is_no_link_and_no_failure(tracing: Tracing, parent: str) -> None:
    with tracing.connect(parent=True) as db:
        mail = db.queue("mail")
        mail.put("hello", headers={"traceparent": parent, "tracestate": "=,=" * 300})
        drain(mail)
        assert mail.dead.peek() == []
    [run] = tracing.spans("process")
    assert (run.parent, links(run)) == (None, [])


def test_what_is_received_is_run_within_a_span_on_request(tracing: Tracing) -> None:
    with tracing.connect() as db:
        mail = db.queue("mail")
        with tracing.within():
            mail.put_many(["a", "b"])
        for message in (messages := mail.receive()):
            # Not the parent, as it would be of what the run does.
            with tracing.within(), tracing.traces.run(message):
                mail.ack(message)
        with tracing.traces.run(*messages):
            pass
    [send] = tracing.spans("send")
    *each, both = tracing.spans("process")
    assert [run.parent for run in each] == [None, None]
    assert [links(run) for run in each] == [[place(send)]] * 2
    assert links(both) == [place(send)] * 2
    assert (both.attributes or {})["messaging.batch.message_count"] == 2
    with pytest.raises(UsageError, match="there are none"):
        tracing.traces.run()


def test_a_put_from_asyncio_belongs_to_the_span_that_is_current_there(tracing: Tracing) -> None:
    async def main() -> Message:
        async with aio.connect("sqlite://", traces=tracing.traces) as db:
            with tracing.within():
                return await db.queue("mail").put("hello")

    message = asyncio.run(main())
    [send] = tracing.spans("send")
    assert parent_of(message) == place(send)


# Tasks and schedules ------------------------------------------------------------------------------


def app_of(tracing: Tracing, tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path}/jobs.db", traces=tracing.traces, attempts=1)


@pytest.mark.parametrize("options", [{}, {"keep": "1h"}, {"timeout": "1m"}])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_task_runs_within_its_span_and_what_it_puts_belongs_to_it(
    tracing: Tracing, tmp_path: Path, options: dict[str, Any], *, is_async: bool
) -> None:
    with app_of(tracing, tmp_path) as app:

        @app.task(name="follow")
        def follow() -> None: ...

        async def lead_async() -> None:
            follow.put()

        declare = app.task(name="lead", **options)
        lead: Any = declare(lead_async) if is_async else declare(lambda: bool(follow.put()))
        with tracing.within():
            lead.put()
        assert states(worked(app)) == ["done", "done"]
    first, second = tracing.spans("send")
    led, followed = tracing.spans("process")
    assert [(run.attributes or {})["shardq.task"] for run in (led, followed)] == ["lead", "follow"]
    assert (links(led), links(followed)) == ([place(first)], [place(second)])
    assert place(second.parent) == place(led)


def test_jobs_of_put_many_are_linked_and_a_batch_is_one_run(
    tracing: Tracing, tmp_path: Path
) -> None:
    with app_of(tracing, tmp_path) as app:

        @app.task(batch=3, name="add")
        def add(numbers: list[int]) -> None:
            assert sum(numbers) == 6

        with tracing.within():
            add.put_many([1, 2])
            add.put(3)
        assert states(worked(app)) == ["done"] * 3
    many, one = tracing.spans("send")
    [run] = tracing.spans("process")
    assert sorted(links(run)) == sorted([place(many), place(many), place(one)])
    assert (run.attributes or {})["messaging.batch.message_count"] == 3


def test_a_failed_task_is_an_error_of_its_span(tracing: Tracing, tmp_path: Path) -> None:
    with app_of(tracing, tmp_path) as app:

        @app.task
        async def fail() -> None:
            raise KeyError("user")

        fail.put()
        assert states(worked(app)) == ["failed"]
    [run] = tracing.spans("process")
    assert (run.attributes or {})["error.type"] == "KeyError"


def test_an_app_on_a_connection_takes_the_traces_of_that(tracing: Tracing) -> None:
    with tracing.connect() as db:
        with pytest.raises(BadSetting, match=r"shardq\.connect\(\.\., traces"):
            App(db, traces=tracing.traces)
        app = App(db)

        @app.task
        def nothing() -> None: ...

        nothing.put()
        # Nobody is told of its runs: nothing else is around them.
        Worker(app).run(until_empty=True)
    assert len(tracing.spans("process")) == 1


@pytest.mark.parametrize("options", [{}, {"overlap": "skip"}], ids=["plain", "by key"])
@pytest.mark.parametrize("is_local", [True, False])
def test_the_run_of_a_schedule_is_linked_to_its_firing(
    tracing: Tracing, options: Any, *, is_local: bool
) -> None:
    with Stage(local=is_local) as stage:
        store, clock = stage._store, stage.clock.shifted(0)
        with shardq.Connection(store, clock, background=False, traces=tracing.traces) as db:
            mail = db.queue("mail")
            with tracing.within():
                mail.every("10s", "sync", name="crm", **options)
            ran: list[Message] = []
            stage.drive(Consumer(mail, ran.append), seconds=25)
    assert tracing.spans("send") == []
    created, runs = tracing.spans("create"), tracing.spans("process")
    assert [one.name for one in created] == ["create mail"] * 2
    assert [one.parent for one in created] == [None] * 2
    assert [(one.attributes or {})["messaging.message.id"] for one in created] == [
        one.id for one in ran
    ]
    assert [links(run) for run in runs] == [[place(one)] for one in created]


# The server ---------------------------------------------------------------------------------------


def test_a_message_over_http_carries_the_trace_of_its_request() -> None:
    own = PARENT.replace("a", "c")
    sent = {"traceparent": PARENT, "tracestate": "vendor=1"}

    async def story(api: Api) -> None:
        messages = "/v1/queues/mail/messages"
        await api.done("PUT", "/v1/queues/mail")
        await api.done("POST", messages, {"body": "one", "headers": {"lang": "de"}}, sent)
        await api.done("POST", messages, [{"body": "two"}], sent)
        await api.done("PUT", "/v1/queues/mail/keys/k", {"body": "three"}, sent)
        await api.done("POST", "/v1/queues/mail/jobs", {"task": "four"}, sent)
        await api.done("POST", messages, {"body": "own", "headers": {"traceparent": own}}, sent)
        await api.done(
            "POST", messages, {"body": "bad"}, {"traceparent": "00-x", "tracestate": "v=1"}
        )
        await api.done("POST", messages, {"body": "long"}, sent | {"tracestate": "v=" + "1" * 999})
        found = {one.text: one.headers for one in api.db.queue("mail").peek(10)}
        assert found.pop("one") == {"lang": "de", **sent}
        assert (found.pop("two"), found.pop("three")) == (sent, sent)
        assert found.pop("own") == {"traceparent": own}
        assert found.pop("bad") == {}
        assert found.pop("long") == {"traceparent": PARENT}
        [job] = found.values()
        assert job == {"task": "four", **sent}

    play(story)


def test_requests_of_one_batch_keep_their_own_traces(tracing: Tracing) -> None:
    async def main() -> None:
        with tracing.connect() as db:
            api = Api(db)
            await api.done("PUT", "/v1/queues/mail")

            async def ask(number: int) -> tuple[int, int]:
                # An instrumented application into which this one is mounted has such a span.
                with tracing.within(f"request {number}") as span:
                    await api.done("POST", "/v1/queues/mail/messages", {"body": str(number)})
                return place(span.get_span_context())

            async with asyncio.timeout(60):
                without = api.done("POST", "/v1/queues/mail/messages", {"body": "nobody's"})
                *asked, _ = await asyncio.gather(*map(ask, range(5)), without)
                await api.app.site.close()
            found = {one.text: one for one in db.queue("mail").peek(10)}
            assert found.pop("nobody's").headers == {}
            assert [parent_of(found[str(number)]) for number in range(5)] == asked

    asyncio.run(main())


@pytest.fixture
def sqs() -> Iterator[Place]:
    yield from placed()


def test_sqs_keeps_the_trace_of_its_own_and_takes_that_of_an_attribute(sqs: Place) -> None:
    url = sqs.make()
    root = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    sqs.send_message(
        QueueUrl=url,
        MessageBody="a",
        # Instrumented clients send this attribute.
        MessageAttributes={"traceparent": {"DataType": "String", "StringValue": PARENT}},
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": root}},
    )
    [message] = sqs.db.queue("mail").peek()
    assert message.headers["traceparent"] == PARENT
    [got] = sqs.got(url, AttributeNames=["AWSTraceHeader"])
    assert got["Attributes"] == {"AWSTraceHeader": root}


# Logs ---------------------------------------------------------------------------------------------


class Kept(logging.Handler):
    """Keeps the ids of what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(RunIds())
        self.ids: dict[str, tuple[str, str, str, str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found: Any = record
        ids = (found.message_id, found.queue, found.task, found.trace_id)
        self.ids[record.getMessage().partition(" ")[0]] = ids


@pytest.fixture
def kept() -> Iterator[Kept]:
    made, root = Kept(), logging.getLogger()
    root.addHandler(made)
    yield made
    root.removeHandler(made)


log = logging.getLogger(__name__)


def test_what_a_run_logs_has_the_ids_of_the_message_and_the_trace(
    tracing: Tracing, tmp_path: Path, kept: Kept
) -> None:
    app = app_of(tracing, tmp_path)

    @app.task(name="sync")
    def sync() -> None:
        log.warning("sync")

    @app.task(name="concurrent")
    async def concurrent() -> None:
        log.warning("concurrent")

    @app.task(name="batch", batch=2)
    def batch(numbers: list[int]) -> None:
        log.warning("batch")

    with app:
        jobs = {"sync": sync.put(), "concurrent": concurrent.put(), "batch": batch.put(1)}
        worked(app)
    runs = tracing.spans("process")
    of_task = {
        (run.attributes or {})["shardq.task"]: format_trace_id(place(run)[0]) for run in runs
    }
    for name, job in jobs.items():
        assert kept.ids[name] == (job.id, "default", name, of_task[name])
    log.warning("outside")
    assert kept.ids["outside"] == ("", "", "", "")


def test_a_batch_that_the_caller_of_a_step_runs_has_ids(tmp_path: Path, kept: Kept) -> None:
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task(name="batch", batch=2)
        def batch(numbers: list[int]) -> None:
            log.warning("batch")

        job = batch.put(1)
        worker = Worker(app)
        worker.step()
        worker.close()
    assert kept.ids["batch"] == (job.id, "default", "batch", "")


def test_a_handler_and_the_line_of_its_failure_have_ids_without_traces(kept: Kept) -> None:
    def act(_message: Message) -> None:
        log.warning("handler")
        log.warning("own", extra={"task": "mine"})
        raise Bury("no such user")

    with shardq.connect("sqlite://") as db:
        message = db.queue("mail").put("hello")
        drain(db.queue("mail"), act)
    assert kept.ids["handler"] == (message.id, "mail", "", "")
    assert kept.ids["own"] == (message.id, "mail", "mine", "")
    assert kept.ids["message"] == (message.id, "mail", "", "")


# With and without an SDK --------------------------------------------------------------------------


def test_without_an_sdk_nothing_is_made_and_a_given_trace_is_passed_on_with_parent() -> None:
    # The API's provider without an SDK; the process of this test may have an SDK.
    provider = trace.NoOpTracerProvider()
    for parent, wanted in ((False, {}), (True, {"traceparent": PARENT})):
        traces = Traces(parent=parent, tracer_provider=provider)
        with shardq.connect("sqlite://", traces=traces) as db:
            mail, next_one = db.queue("mail"), db.queue("next")
            mail.put("hello", headers={"traceparent": PARENT})
            drain(mail, lambda message, after=next_one: after.put(message.body))
            [message] = next_one.peek()
            assert message.headers == wanted


class Hanging(SpanExporter):
    """Hangs until it is released."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.released = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_asked.set()
        self.released.wait()
        return SpanExportResult.SUCCESS


def test_an_exporter_that_hangs_holds_up_no_message() -> None:
    exporter = Hanging()
    provider = TracerProvider(shutdown_on_exit=False)
    # Room for fewer spans than are made.
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=64, max_export_batch_size=8)
    )
    try:
        with shardq.connect("sqlite://", traces=Traces(tracer_provider=provider)) as db:
            mail = db.queue("mail", history="1h")
            mail.put_many(f"{number}" for number in range(500))
            drain(mail)
            assert exporter.is_asked.wait(60)
            assert mail.depth(exact=True).total == 0
            assert mail.audit().is_even
            assert mail.totals().acked == 500
    finally:
        exporter.released.set()
        provider.shutdown()


@pytest.mark.parametrize("given", [True, Traces, "otel"])
def test_what_is_no_traces_is_refused_at_once(given: Any) -> None:
    for open_with in (shardq.connect, App):
        with pytest.raises(BadSetting, match=r"traces must be a shardq\.tracing\.Traces\(\)"):
            open_with("sqlite://", traces=given)


@pytest.mark.parametrize("parent", [1, None, "yes"])
def test_parent_is_true_or_false(parent: Any) -> None:
    with pytest.raises(BadSetting, match="parent must be True or False"):
        Traces(parent=parent)


def test_names_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (messaging_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    own = {"shardq.task", "shardq.attempt"}
    used = {value for name, value in vars(names).items() if name.isupper() and "." in value}
    assert used - own - {names.SCHEMA_URL} <= known
    assert names.SCHEMA_URL in {one.value for one in Schemas}
    types = {one.value for one in messaging_attributes.MessagingOperationTypeValues}
    assert {names.CREATE, names.SEND, names.PROCESS} <= types
