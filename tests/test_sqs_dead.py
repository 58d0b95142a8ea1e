"""Redrive policies, dead letters and move tasks, by boto3."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import TYPE_CHECKING, Any

import callers
import pytest
from callers import Api, as_test
from hosted import hosted, sqs_at
from msgspec.structs import replace
from placed import Place, placed, timed_place

import shardq
from shardq.clock import pause
from shardq.errors import StoreError, StoreFull, StoreRefused, StoreTimeout, StoreUnavailable
from shardq.server import application
from shardq.server.endpoints import EndpointAddress, Endpoints, MoveTask
from shardq.server.sqs import directory
from shardq.testing import ManualClock, Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

RECORDS = "write_records endpoints"
ARN = "arn:aws:sqs:us-east-1:000000000000:"


@pytest.fixture
def sqs() -> Iterator[Place]:
    yield from placed()


@pytest.fixture
def timed() -> Iterator[Place]:
    yield from timed_place()


def redrive(target: str, most: object = 2) -> str:
    return json.dumps({"deadLetterTargetArn": ARN + target, "maxReceiveCount": most})


def pair(place: Place, end: str = "", most: object = 2) -> tuple[str, str]:
    """The urls of a queue and of its dead-letter queue."""
    content = {"ContentBasedDeduplication": "true"} if end else {}
    dead = place.make(f"dead{end}", **content)
    url = place.make(
        f"mail{end}", VisibilityTimeout="10", RedrivePolicy=redrive(f"dead{end}", most), **content
    )
    return url, dead


@pytest.mark.parametrize("end", ["", ".fifo"])
def test_a_message_received_too_often_moves_with_its_id_and_its_source(
    timed: Place, end: str
) -> None:
    url, dead = pair(timed, end)
    group = {"MessageGroupId": "g"} if end else {}
    attributes = {"count": {"DataType": "Number", "StringValue": "5"}}
    sent = timed.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes, **group)
    for _ in range(2):
        assert timed.bodies(url) == ["x"]
        timed.pass_by(11)
    assert timed.bodies(url) == []
    [got] = timed.got(dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert got["MessageId"] == sent["MessageId"]
    assert got["MessageAttributes"] == attributes
    assert got["Attributes"]["DeadLetterQueueSourceArn"] == f"{ARN}mail{end}"
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"
    sources = timed.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]
    assert sources == [url]


def test_a_dead_message_names_a_source_whose_name_is_long() -> None:
    clock, region = ManualClock(), "ap-northeast-1"
    arn = f"arn:aws:sqs:{region}:000000000000:"
    with shardq.connect("sqlite://", clock=clock) as db:
        with hosted(application(db)) as at:
            client = sqs_at(at, region=region)
            dead = client.create_queue(QueueName="dead")["QueueUrl"]
            policy = json.dumps({"deadLetterTargetArn": f"{arn}dead", "maxReceiveCount": 1})
            given = {"RedrivePolicy": policy}
            url = client.create_queue(QueueName="m" * 80, Attributes=given)["QueueUrl"]
            client.send_message(QueueUrl=url, MessageBody="x")
            assert len(client.receive_message(QueueUrl=url)["Messages"]) == 1
            clock.advance(31)
            assert "Messages" not in client.receive_message(QueueUrl=url)
        # Ask another server, which has not heard of the source queue.
        with hosted(application(db)) as at:
            client = sqs_at(at, region=region)
            [got] = client.receive_message(QueueUrl=dead, AttributeNames=["All"])["Messages"]
    assert got["Attributes"]["DeadLetterQueueSourceArn"] == f"{arn}{'m' * 80}"


def test_a_count_that_is_a_text_is_read_back_as_a_number(sqs: Place) -> None:
    url, _ = pair(sqs, most="7")
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    assert json.loads(attributes["Attributes"]["RedrivePolicy"])["maxReceiveCount"] == 7
    assert sqs.db.queue("mail").settings.attempts == 7


def test_a_policy_that_is_removed_leaves_messages_where_they_are(timed: Place) -> None:
    url, dead = pair(timed, most=1)
    timed.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "Attributes" not in timed.get_queue_attributes(
        QueueUrl=url, AttributeNames=["RedrivePolicy"]
    )
    timed.send_message(QueueUrl=url, MessageBody="x")
    for _ in range(20):
        assert timed.bodies(url) == ["x"]
        timed.pass_by(11)
    assert timed.bodies(dead) == []


def test_a_queue_whose_dead_letter_queue_was_deleted_can_be_changed(sqs: Place) -> None:
    url, dead = pair(sqs)
    sqs.delete_queue(QueueUrl=dead)
    wanted = {"VisibilityTimeout": "7", "DelaySeconds": "900"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=wanted)
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[*wanted])["Attributes"]
    assert found == wanted
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert sqs.bodies(url) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "Redrive policy is not a valid JSON map."),
        ("[]", "Redrive policy is not a valid JSON map."),
        (
            json.dumps({"deadLetterTargetArn": f"{ARN}dead"}),
            "Redrive policy does not contain mandatory attribute: maxReceiveCount.",
        ),
        (redrive("dead", 0), "Invalid value for maxReceiveCount"),
        (redrive("dead", 1001), "Invalid value for maxReceiveCount"),
        (redrive("nowhere"), "Dead letter target does not exist."),
        (redrive("dead.fifo"), "Dead-letter queue must be same type of queue as the source."),
        (redrive("mail"), "A queue cannot be its own dead-letter queue."),
        (redrive("closed"), "does not allow this queue"),
        (json.dumps({"deadLetterTargetArn": "dead", "maxReceiveCount": 1}), "deadLetterTargetArn"),
    ],
)
def test_a_redrive_policy_that_cannot_be_used_is_refused(
    sqs: Place, text: str, reason: str
) -> None:
    url = sqs.make()
    sqs.make("dead")
    sqs.make("dead.fifo")
    sqs.make("closed", RedriveAllowPolicy='{"redrivePermission": "denyAll"}')
    code, refused = sqs.refused(
        "set_queue_attributes", QueueUrl=url, Attributes={"RedrivePolicy": text}
    )
    assert code == "InvalidParameterValue"
    assert reason in refused


def test_a_dead_letter_queue_chooses_its_sources(sqs: Place) -> None:
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [f"{ARN}mail"]}
    sqs.make("dead", RedriveAllowPolicy=json.dumps(allow))
    sqs.make("mail", RedrivePolicy=redrive("dead"))
    refused = sqs.refused(
        "create_queue", QueueName="other", Attributes={"RedrivePolicy": redrive("dead")}
    )
    assert "does not allow this queue" in refused[1]


# Move tasks ---------------------------------------------------------------------------------------


def fill(place: Place, url: str, count: int) -> None:
    """Let messages die."""
    for number in range(count):
        place.send_message(QueueUrl=url, MessageBody=f"{number}")
    while place.got(url, VisibilityTimeout=0):
        pass


def ended(place: Place, queue: str = "dead") -> dict[str, Any]:
    """The newest move task of a queue, once it has ended."""
    for _ in range(5_000):
        [task] = place.list_message_move_tasks(SourceArn=ARN + queue)["Results"]
        if task["Status"] not in {"RUNNING", "CANCELLING"}:
            found: dict[str, Any] = task
            return found
    raise AssertionError(f"the task of {queue} does not end")


def test_dead_messages_go_back_to_their_sources(sqs: Place) -> None:
    url, dead = pair(sqs, most=1)
    fill(sqs, url, 3)
    sqs.start_message_move_task(SourceArn=f"{ARN}dead")
    task = ended(sqs)
    assert task["Status"] == "COMPLETED"
    assert task["ApproximateNumberOfMessagesMoved"] == 3
    assert task["ApproximateNumberOfMessagesToMove"] == 3
    assert sorted(sqs.bodies(url)) == ["0", "1", "2"]
    assert sqs.bodies(dead) == []


def test_dead_messages_go_to_another_queue_at_a_rate_and_a_task_is_cancelled(sqs: Place) -> None:
    url, _ = pair(sqs, most=1)
    other = sqs.make("other")
    fill(sqs, url, 3)
    started = sqs.start_message_move_task(
        SourceArn=f"{ARN}dead", DestinationArn=f"{ARN}other", MaxNumberOfMessagesPerSecond=1
    )
    refused = sqs.refused("start_message_move_task", SourceArn=f"{ARN}dead")
    assert refused[0] == "AWS.SimpleQueueService.UnsupportedOperation"
    assert len(sqs.bodies(other, WaitTimeSeconds=20)) == 1
    sqs.cancel_message_move_task(TaskHandle=started["TaskHandle"])
    task = ended(sqs)
    assert task["Status"] == "CANCELLED"
    assert 1 <= task["ApproximateNumberOfMessagesMoved"] < 3
    assert "TaskHandle" not in task
    refused = sqs.refused("cancel_message_move_task", TaskHandle=started["TaskHandle"])
    assert refused[1] == "Only active tasks can be cancelled."


def test_another_server_continues_a_task_whose_server_has_died() -> None:
    clock = ManualClock()
    with shardq.connect("sqlite://", clock=clock) as db:
        with hosted(application(db)) as first:
            place = Place(db, first, clock)
            url, _ = pair(place, most=1)
            fill(place, url, 3)
            place.pass_by(1)
            assert place.got(url) == []
        # A server that died in the middle of a task leaves this record.
        now_ms = clock.now_ms()
        task = MoveTask(id="a", begun_ms=now_ms, at_ms=now_ms, moved=1, total=4)
        Endpoints(db._home.store).change(
            EndpointAddress.of_arn(f"{ARN}dead") or EndpointAddress("", "", ""),
            lambda before: replace(before, tasks=(task,)),
        )
        with hosted(application(db)) as second:
            place = Place(db, second, clock)
            [running] = place.list_message_move_tasks(SourceArn=f"{ARN}dead")["Results"]
            assert running["Status"] == "RUNNING"
            clock.advance(11)
            assert ended(place)["ApproximateNumberOfMessagesMoved"] == 4
            assert sorted(place.bodies(url)) == ["0", "1", "2"]


async def newest(api: Api, queue: str = "dead") -> dict[str, Any]:
    """The newest move task of a queue."""
    found = await api.sqs_done("ListMessageMoveTasks", SourceArn=ARN + queue)
    task: dict[str, Any] = found["Results"][0]
    return task


async def ended_at(api: Api) -> dict[str, Any]:
    while (task := await newest(api))["Status"] in {"RUNNING", "CANCELLING"}:
        await pause(0.01)
    return task


def staged(story: Callable[[Stage, Api], Awaitable[None]]) -> None:
    """Play a story with three dead messages, in which no task of the event loop fails unseen."""
    complaints: list[dict[str, Any]] = []

    async def filled(stage: Stage, api: Api) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: complaints.append(found))
        for name, attributes in (
            ("dead", {}),
            ("other", {}),
            ("mail", {"RedrivePolicy": redrive("dead", 1)}),
        ):
            await api.sqs_done("CreateQueue", QueueName=name, Attributes=attributes)
        for number in range(3):
            await api.sqs_done("SendMessage", QueueUrl="dead", MessageBody=f"{number}")
        await story(stage, api)
        await api.app.site.close()
        gc.collect()

    callers.staged(filled)
    assert complaints == []


def on_stage(test: Callable[..., Any]) -> Callable[..., None]:
    """Make a test of a story, by `staged`."""
    return as_test(test, staged, "stage", "api")


async def start(api: Api, **more: Any) -> str:
    """Begin to move the dead messages into another queue; returns the task's handle."""
    target = {"SourceArn": f"{ARN}dead", "DestinationArn": f"{ARN}other"}
    handle: str = (await api.sqs_done("StartMessageMoveTask", **target, **more))["TaskHandle"]
    return handle


async def met(stage: Stage, verb: str, nth: int) -> None:
    """Wait until `nth` more calls of a verb were made."""
    nth += stage.faults.calls.get(verb, 0)
    while stage.faults.calls.get(verb, 0) < nth:
        await pause(0.01)


def depths(stage: Stage, *names: str) -> list[int]:
    db = stage.connect()
    return [db.queue(name).depth().total for name in names]


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("away"), StoreTimeout("perhaps"), StoreFull("full")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(("verb", "nth"), [("move", 1), (RECORDS, 2)])
@on_stage
async def test_a_task_continues_when_a_store_that_stopped_is_back(
    stage: Stage, api: Api, verb: str, nth: int, error: StoreError
) -> None:
    stage.faults.fail(verb, nth=nth, times=1_000, error=error)
    await start(api)
    await met(stage, verb, 2)
    assert (await newest(api))["Status"] == "RUNNING"
    stage.faults.heal()
    assert (await ended_at(api))["Status"] == "COMPLETED"
    assert depths(stage, "dead", "other") == [0, 3]


@pytest.mark.parametrize("nth", [2, 3])
@on_stage
async def test_a_task_whose_record_was_written_without_an_answer_counts_nothing_twice(
    stage: Stage, api: Api, nth: int
) -> None:
    stage.faults.fail(RECORDS, nth=nth, applied=True)
    await start(api)
    task = await ended_at(api)
    assert task["Status"] == "COMPLETED"
    assert task["ApproximateNumberOfMessagesMoved"] == 3
    assert depths(stage, "dead", "other") == [0, 3]


@on_stage
async def test_a_task_at_a_rate_counts_nothing_twice_when_answers_are_lost(
    stage: Stage, api: Api
) -> None:
    for nth in (3, 5):
        stage.faults.fail(RECORDS, nth=nth, applied=True)
    await start(api, MaxNumberOfMessagesPerSecond=1)
    assert (await ended_at(api))["ApproximateNumberOfMessagesMoved"] == 3
    assert depths(stage, "dead", "other") == [0, 3]


@on_stage
async def test_a_task_that_waits_for_its_store_can_be_cancelled(stage: Stage, api: Api) -> None:
    stage.faults.fail("move", times=1_000)
    handle = await start(api)
    await met(stage, "move", 1)
    await api.sqs_done("CancelMessageMoveTask", TaskHandle=handle)
    assert (await ended_at(api))["Status"] == "CANCELLED"
    stage.faults.heal()
    assert depths(stage, "dead", "other") == [3, 0]


@on_stage
async def test_a_server_that_leaves_does_not_wait_for_the_store_of_a_task(
    stage: Stage, api: Api
) -> None:
    stage.faults.fail(RECORDS, nth=2, times=1_000)
    await start(api)
    await met(stage, RECORDS, 1)
    await api.app.site.close()
    while api.app.site.own(directory).movers:
        await pause(0.01)
    stage.faults.heal()
    assert depths(stage, "dead", "other") == [3, 0]


@on_stage
async def test_a_store_that_refuses_a_move_fails_its_task(stage: Stage, api: Api) -> None:
    stage.faults.fail("move", error=StoreRefused("never"))
    await start(api)
    task = await ended_at(api)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "never")


@on_stage
async def test_a_task_ends_with_its_queue(stage: Stage, api: Api) -> None:
    await start(api, MaxNumberOfMessagesPerSecond=1)
    await api.sqs_done("DeleteQueue", QueueUrl="dead")
    while api.app.site.own(directory).movers:
        await pause(0.01)


def test_a_task_moves_no_more_messages_than_there_were_at_its_start(sqs: Place) -> None:
    url, dead = pair(sqs, most=1)
    sqs.make("other")
    fill(sqs, url, 2)
    assert sqs.bodies(dead, VisibilityTimeout=0)
    target = {"SourceArn": f"{ARN}dead", "DestinationArn": f"{ARN}other"}
    sqs.start_message_move_task(**target, MaxNumberOfMessagesPerSecond=1)
    for number in range(3):
        sqs.send_message(QueueUrl=dead, MessageBody=f"later {number}")
    task = ended(sqs)
    assert task["Status"] == "COMPLETED"
    assert task["ApproximateNumberOfMessagesMoved"] == 2
    assert sqs.db.queue("dead").depth().total == 3


def test_a_task_moves_what_was_sent_just_before_its_start(sqs: Place) -> None:
    pair(sqs)
    sqs.make("other")
    names = ["ApproximateNumberOfMessages"]
    sqs.get_queue_attributes(QueueUrl="dead", AttributeNames=names)
    # Another process puts without this server's knowledge.
    sqs.db.queue("dead").put_many(["a", "b"])
    sqs.start_message_move_task(SourceArn=f"{ARN}dead", DestinationArn=f"{ARN}other")
    assert ended(sqs)["ApproximateNumberOfMessagesMoved"] == 2


@pytest.mark.parametrize("rate", [{}, {"MaxNumberOfMessagesPerSecond": 2}], ids=["fast", "rate"])
@pytest.mark.parametrize("end", ["", ".fifo"])
def test_two_tasks_that_move_to_each_other_end_with_each_message_once(
    sqs: Place, end: str, rate: dict[str, int]
) -> None:
    group = {"MessageGroupId": "g"} if end else {}
    content = {"ContentBasedDeduplication": "true"} if end else {}
    names = [f"a{end}", f"b{end}"]
    for name in names:
        sqs.make(name, **content)
        sqs.make(f"of-{name}", RedrivePolicy=redrive(name), **content)
        for number in range(5):
            sqs.send_message(QueueUrl=name, MessageBody=f"{name} {number}", **group)
    for source, to in (names, names[::-1]):
        target = {"SourceArn": ARN + source, "DestinationArn": ARN + to}
        sqs.start_message_move_task(**target, **rate)
    for name in names:
        assert ended(sqs, name)["Status"] == "COMPLETED"
    found = [one.text for name in names for one in sqs.db.queue(name).peek(limit=100)]
    assert sorted(found) == sorted(f"{name} {number}" for name in names for number in range(5))


def test_a_task_needs_a_dead_letter_queue_and_a_rate_within_bounds(sqs: Place) -> None:
    sqs.make()
    code, text = sqs.refused("start_message_move_task", SourceArn=f"{ARN}mail")
    assert (code, text) == (
        "InvalidParameterValue",
        "Source queue must be configured as a Dead Letter Queue.",
    )
    code, _ = sqs.refused("start_message_move_task", SourceArn=f"{ARN}nowhere")
    assert code == "ResourceNotFoundException"
    for rate in (0, 501):
        code, _ = sqs.refused(
            "start_message_move_task", SourceArn=f"{ARN}mail", MaxNumberOfMessagesPerSecond=rate
        )
        assert code == "InvalidParameterValue"
    assert sqs.refused("cancel_message_move_task", TaskHandle="?")[0] == "InvalidParameterValue"
