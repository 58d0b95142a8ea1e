"""The SQS endpoint by boto3: what clients see."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import md5
from typing import TYPE_CHECKING, Any

import pytest
from hosted import sqs_at
from placed import Place, placed, timed_place

from shardq.server.endpoints import Endpoint, EndpointAddress, Endpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
EMPTY = {"a": {"DataType": "String", "StringValue": ""}}


@pytest.fixture
def sqs() -> Iterator[Place]:
    yield from placed()


@pytest.fixture
def timed() -> Iterator[Place]:
    yield from timed_place()


# Messages -----------------------------------------------------------------------------------------


def test_a_message_is_sent_received_and_deleted(sqs: Place) -> None:
    url = sqs.make()
    assert url == f"{sqs.url}/000000000000/mail"
    attributes = {
        "trace": {"DataType": "String", "StringValue": "ü"},
        "count": {"DataType": "Number.int", "StringValue": "5"},
        "image": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="é", MessageAttributes=attributes)
    assert sent["MD5OfMessageBody"] == md5("é".encode()).hexdigest()
    [got] = sqs.got(url, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert got["MessageId"] == sent["MessageId"]
    assert got["MessageAttributes"] == attributes
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"
    assert sqs.got(url) == []
    for _ in range(2):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == "0"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_only_the_attributes_asked_for_are_returned_and_digested(sqs: Place) -> None:
    url = sqs.make()
    sqs.send_message(
        QueueUrl=url,
        MessageBody="b",
        MessageAttributes={
            name: {"DataType": "String", "StringValue": "1"} for name in ("a.x", "a.y", "b")
        },
    )
    wanted = [[], ["a.*"], ["b"], [".*"]]
    found = []
    for names in wanted:
        # boto3 refuses an answer with a wrong digest.
        [got] = sqs.got(url, VisibilityTimeout=0, MessageAttributeNames=names)
        found.append(sorted(got.get("MessageAttributes", {})))
    assert found == [[], ["a.x", "a.y"], ["b"], ["a.x", "a.y", "b"]]


def test_python_workers_and_clients_share_a_queue_by_its_plain_name(sqs: Place) -> None:
    queue = sqs.db.queue("orders")
    queue.put("from Python", headers={"kind": "new"})
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    [got] = sqs.got(url, MessageAttributeNames=["All"])
    assert got["Body"] == "from Python"
    assert got["MessageAttributes"] == {"kind": {"DataType": "String", "StringValue": "new"}}
    sqs.send_message(
        QueueUrl=url,
        MessageBody="from SQS",
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "old"}},
    )
    [received] = queue.receive()
    assert (received.text, received.headers) == ("from SQS", {"kind": "old"})


def test_a_body_that_sqs_cannot_carry_is_received_as_base64(sqs: Place) -> None:
    sqs.db.queue("mail").put(b"\xff\0")
    [got] = sqs.got(sqs.make())
    assert got["Body"] == "/wA="
    assert got["MessageAttributes"]["shardq-encoding"]["StringValue"] == "base64"


def test_a_message_without_a_body_is_received_with_an_empty_one(sqs: Place) -> None:
    sqs.db.queue("mail").put(b"")
    [got] = sqs.got(sqs.make())
    assert got["Body"] == ""
    assert got["MD5OfBody"] == md5(b"").hexdigest()


@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        (
            {"MessageBody": ""},
            "MissingParameter",
            "The request must contain the parameter MessageBody.",
        ),
        ({"MessageBody": "\0"}, "InvalidMessageContents", "Invalid characters found: MessageBody"),
        (
            {"MessageBody": "x" * (MIB + 1)},
            "InvalidParameterValue",
            "One or more parameters are invalid. Reason: Message must be shorter than 1048576 "
            "bytes.",
        ),
        (
            {"MessageBody": "x", "DelaySeconds": 901},
            "InvalidParameterValue",
            "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 "
            "and <= 900.",
        ),
        (
            {"MessageBody": "x", "MessageAttributes": EMPTY},
            "InvalidParameterValue",
            "The message attribute 'a' must contain a non-empty value of its type, 'String'.",
        ),
    ],
)  # fmt: skip
def test_a_message_that_sqs_would_refuse_is_refused(
    sqs: Place, given: dict[str, Any], code: str, text: str
) -> None:
    url = sqs.make()
    assert sqs.refused("send_message", QueueUrl=url, **given) == (code, text)
    assert sqs.got(url) == []


def test_bounds_of_a_receive_have_aws_s_texts(sqs: Place) -> None:
    url = sqs.make()
    assert sqs.refused("receive_message", QueueUrl=url, MaxNumberOfMessages=11)[1] == (
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, "
        "if provided."
    )
    assert sqs.refused("receive_message", QueueUrl=url, WaitTimeSeconds=21)[1] == (
        "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if "
        "provided."
    )


def test_each_entry_of_a_batch_has_its_own_answer(sqs: Place) -> None:
    url = sqs.make()
    entries = [
        {"Id": "a", "MessageBody": "1"},
        {"Id": "b", "MessageBody": "\0"},
        {"Id": "c", "MessageBody": "3", "DelaySeconds": 901},
    ]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == ["a"]
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in sent["Failed"]] == [
        ("b", "InvalidMessageContents", True),
        ("c", "InvalidParameterValue", True),
    ]
    [got] = sqs.got(url)
    handles = [got["ReceiptHandle"], "garbage"]
    ended = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[{"Id": str(n), "ReceiptHandle": one} for n, one in enumerate(handles)],
    )
    assert [one["Id"] for one in ended["Successful"]] == ["0"]
    assert [one["Code"] for one in ended["Failed"]] == ["ReceiptHandleIsInvalid"]


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([str(n) for n in range(11)], "TooManyEntriesInBatchRequest"),
        (["a", "a"], "BatchEntryIdsNotDistinct"),
        (["a b"], "InvalidBatchEntryId"),
    ],
)
def test_a_batch_may_be_refused_as_a_whole(sqs: Place, ids: list[str], code: str) -> None:
    entries = [{"Id": one, "MessageBody": "x"} for one in ids]
    refused = sqs.refused("send_message_batch", QueueUrl=sqs.make(), Entries=entries)
    assert refused[0] == f"AWS.SimpleQueueService.{code}"


def test_a_message_comes_back_when_its_visibility_ends(timed: Place) -> None:
    url = timed.make(VisibilityTimeout="10")
    timed.send_message(QueueUrl=url, MessageBody="x")
    [first] = timed.got(url)
    timed.pass_by(5)
    assert timed.got(url) == []
    timed.change_message_visibility(
        QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=20
    )
    timed.pass_by(19)
    assert timed.got(url) == []
    timed.pass_by(2)
    [second] = timed.got(url, AttributeNames=["ApproximateReceiveCount"])
    assert second["Attributes"] == {"ApproximateReceiveCount": "2"}


def test_a_visibility_of_0_lets_others_have_the_message_and_keeps_the_attempt(timed: Place) -> None:
    url = timed.make()
    timed.send_message(QueueUrl=url, MessageBody="x")
    for count in ("1", "2", "3"):
        [got] = timed.got(url, AttributeNames=["ApproximateReceiveCount"])
        assert got["Attributes"]["ApproximateReceiveCount"] == count
        timed.change_message_visibility_batch(
            QueueUrl=url,
            Entries=[{"Id": "a", "ReceiptHandle": got["ReceiptHandle"], "VisibilityTimeout": 0}],
        )


def test_a_long_poll_ends_when_a_message_is_sent_or_a_delayed_one_is_due(sqs: Place) -> None:
    url = sqs.make()
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(sqs.bodies, url, WaitTimeSeconds=20)
        sqs.send_message(QueueUrl=url, MessageBody="now")
        assert poll.result(15) == ["now"]
        sqs.send_message(QueueUrl=url, MessageBody="soon", DelaySeconds=1)
        assert sqs.bodies(url, WaitTimeSeconds=20) == ["soon"]


# FIFO ---------------------------------------------------------------------------------------------


def test_a_group_is_received_in_order_and_waits_for_its_first(timed: Place) -> None:
    url = timed.make("mail.fifo", ContentBasedDeduplication="true")
    sent = timed.send_message_batch(
        QueueUrl=url,
        Entries=[{"Id": str(n), "MessageBody": f"{n}", "MessageGroupId": "g"} for n in range(5)],
    )["Successful"]
    numbers = [one["SequenceNumber"] for one in sent]
    assert numbers == sorted(numbers)
    assert {len(one) for one in numbers} == {20}
    got = timed.got(url, 3, AttributeNames=["All"])
    assert [one["Body"] for one in got] == ["0", "1", "2"]
    assert [one["Attributes"]["SequenceNumber"] for one in got] == numbers[:3]
    assert timed.got(url) == []
    timed.change_message_visibility(
        QueueUrl=url, ReceiptHandle=got[0]["ReceiptHandle"], VisibilityTimeout=0
    )
    assert timed.bodies(url, 1) == ["0"]


def test_what_was_sent_in_the_last_five_minutes_is_not_sent_again(timed: Place) -> None:
    url = timed.make("mail.fifo")

    def send(once: str) -> dict[str, Any]:
        sent: dict[str, Any] = timed.send_message(
            QueueUrl=url, MessageBody=once, MessageGroupId="g", MessageDeduplicationId=once
        )
        return sent

    first = send("a")
    [got] = timed.got(url)
    timed.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    timed.pass_by(299)
    again = send("a")
    assert again["MessageId"] == first["MessageId"]
    assert again["SequenceNumber"] == first["SequenceNumber"]
    assert timed.got(url) == []
    timed.pass_by(2)
    assert send("a")["MessageId"] != first["MessageId"]
    assert timed.bodies(url) == ["a"]


def test_groups_may_have_deduplication_ids_of_their_own(sqs: Place) -> None:
    url = sqs.make("mail.fifo", DeduplicationScope="messageGroup")
    for group in ("g", "h", "g"):
        sqs.send_message(
            QueueUrl=url, MessageBody=group, MessageGroupId=group, MessageDeduplicationId="1"
        )
    assert sorted(sqs.bodies(url)) == ["g", "h"]


def test_a_fifo_queue_needs_a_group_and_something_to_tell_repeats_by(sqs: Place) -> None:
    url = sqs.make("mail.fifo")
    assert sqs.refused("send_message", QueueUrl=url, MessageBody="x") == (
        "MissingParameter",
        "The request must contain the parameter MessageGroupId.",
    )
    assert sqs.refused("send_message", QueueUrl=url, MessageBody="x", MessageGroupId="g")[1] == (
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId "
        "provided explicitly"
    )


def test_a_group_id_on_a_standard_queue_is_returned_and_orders_nothing(sqs: Place) -> None:
    url = sqs.make()
    for body in "ab":
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="tenant")
    got = sqs.got(url, AttributeNames=["MessageGroupId"])
    assert [one["Attributes"] for one in got] == [{"MessageGroupId": "tenant"}] * 2


# Queues -------------------------------------------------------------------------------------------


def test_a_queue_is_made_once_and_refused_with_other_attributes(sqs: Place) -> None:
    url = sqs.make(VisibilityTimeout="10")
    assert sqs.make() == url
    assert sqs.make(VisibilityTimeout="10") == url
    refused = sqs.refused("create_queue", QueueName="mail", Attributes={"VisibilityTimeout": "11"})
    assert refused == (
        "QueueAlreadyExists",
        "A queue already exists with the same name and a different value for attribute "
        "VisibilityTimeout",
    )


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_clients_that_make_a_queue_at_once_all_find_it_with_its_attributes(
    sqs: Place, suffix: str
) -> None:
    attributes = {"VisibilityTimeout": "600"} | ({"FifoQueue": "true"} if suffix else {})

    def make(name: str) -> str:
        # A sender asks for the url first.
        with suppress(sqs.client.exceptions.QueueDoesNotExist):
            sqs.client.get_queue_url(QueueName=name)
        return str(sqs.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    with ThreadPoolExecutor(8) as pool:
        for n in range(5):
            [url] = set(pool.map(make, [f"mail-{n}{suffix}"] * 8))
            got = sqs.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
            assert got["Attributes"]["VisibilityTimeout"] == "600"


def test_a_queue_that_is_being_made_has_its_attributes_before_it_exists(timed: Place) -> None:
    now_ms = timed.clock.now_ms() if timed.clock else 0
    begun = Endpoint(
        queue="mail", made_ms=now_ms, changed_ms=now_ms, attributes={"VisibilityTimeout": "10"}
    )
    Endpoints(timed.db._home.store).make(
        EndpointAddress("000000000000", "us-east-1", "mail"), begun
    )
    code, _ = timed.refused("get_queue_url", QueueName="mail")
    assert code == "AWS.SimpleQueueService.NonExistentQueue"
    other = {"QueueName": "mail", "Attributes": {"VisibilityTimeout": "11"}}
    assert timed.refused("create_queue", **other)[0] == "QueueAlreadyExists"
    # Its maker has died: another may have the name.
    timed.pass_by(61)
    assert timed.refused("get_queue_url", QueueName="mail")[0] == code
    timed.create_queue(**other)


def test_queues_are_listed_by_prefix_in_pages(sqs: Place) -> None:
    assert "QueueUrls" not in sqs.list_queues()
    urls = [sqs.make(f"q{n}") for n in range(5)]
    sqs.make("other")
    sqs.db.queue("q9")
    first = sqs.list_queues(QueueNamePrefix="q", MaxResults=4)
    rest = sqs.list_queues(QueueNamePrefix="q", MaxResults=4, NextToken=first["NextToken"])
    assert first["QueueUrls"] == urls[:4]
    assert rest["QueueUrls"] == [urls[4], f"{sqs.url}/000000000000/q9"]
    assert "NextToken" not in rest


def test_a_token_that_no_list_has_given_is_refused(sqs: Place) -> None:
    dead = sqs.make("dead")
    for name in ("a", "b"):
        redrive = {
            "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead",
            "maxReceiveCount": 1,
        }
        sqs.make(name, RedrivePolicy=json.dumps(redrive))
    given = {"QueueUrl": dead, "MaxResults": 1}
    token = sqs.list_dead_letter_source_queues(**given)["NextToken"]
    rest = sqs.list_dead_letter_source_queues(**given, NextToken=token)
    assert [url.rpartition("/")[2] for url in rest["queueUrls"]] == ["b"]
    of_nothing = base64.urlsafe_b64encode(b"no name").decode()
    for wrong in ("x", "garbage", "AAAA", f"{token}!", f"!{token}", "Y R=", of_nothing, "é" * 4):
        for action, more in (
            ("list_queues", {"MaxResults": 1}),
            ("list_dead_letter_source_queues", given),
        ):
            code, text = sqs.refused(action, NextToken=wrong, **more)
            assert code == "InvalidParameterValue", wrong
            assert text == "Invalid or expired next token."


def test_a_queue_of_any_region_may_have_the_name_dead(sqs: Place) -> None:
    for region in ("us-east-1", "eu-west-1"):
        client = sqs_at(sqs.url, region=region)
        url = client.create_queue(QueueName="dead")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody=region)
        assert [one["Body"] for one in client.receive_message(QueueUrl=url)["Messages"]] == [region]


def test_regions_have_queues_of_their_own(sqs: Place) -> None:
    sqs.send_message(QueueUrl=sqs.make(), MessageBody="here")
    there = sqs_at(sqs.url, region="eu-west-1")
    url = there.create_queue(QueueName="mail")["QueueUrl"]
    assert "Messages" not in there.receive_message(QueueUrl=url)
    attributes = there.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    assert attributes["Attributes"] == {"QueueArn": "arn:aws:sqs:eu-west-1:000000000000:mail"}
    assert sqs.db.queues() == ["mail", "sqs.000000000000.eu-west-1.mail"]


@pytest.mark.parametrize("name", ["-mail", "_", "x" * 80, "9", "x" * 75 + ".fifo"])
def test_a_name_at_its_bounds_is_a_queue(sqs: Place, name: str) -> None:
    url = sqs.make(name, **({"ContentBasedDeduplication": "true"} if "fifo" in name else {}))
    group = {"MessageGroupId": "g"} if "fifo" in name else {}
    sqs.send_message(QueueUrl=url, MessageBody="x", **group)
    assert sqs.bodies(name) == ["x"]


@pytest.mark.parametrize("name", ["", "x" * 81, "a.b", "a b", "ä", "x" * 76 + ".fifo"])
def test_any_other_name_is_refused(sqs: Place, name: str) -> None:
    assert sqs.refused("create_queue", QueueName=name)[0] == "InvalidParameterValue"


def test_a_deleted_queue_is_gone_and_can_be_made_anew(sqs: Place) -> None:
    url = sqs.make()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.delete_queue(QueueUrl=url)
    assert sqs.refused("send_message", QueueUrl=url, MessageBody="x") == (
        "AWS.SimpleQueueService.NonExistentQueue",
        "The specified queue does not exist.",
    )
    assert sqs.got(sqs.make()) == []


def test_a_purged_queue_is_empty_and_is_not_purged_twice_in_a_minute(timed: Place) -> None:
    url = timed.make()
    timed.send_message(QueueUrl=url, MessageBody="x")
    timed.pass_by(1)
    timed.purge_queue(QueueUrl=url)
    assert timed.got(url) == []
    assert timed.refused("purge_queue", QueueUrl=url) == (
        "AWS.SimpleQueueService.PurgeQueueInProgress",
        "Only one PurgeQueue operation on mail is allowed every 60 seconds.",
    )
    timed.pass_by(60)
    timed.purge_queue(QueueUrl=url)


def test_attributes_have_defaults_bounds_and_known_names(sqs: Place) -> None:
    url = sqs.make()
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["VisibilityTimeout"] == "30"
    assert found["MaximumMessageSize"] == "1048576"
    assert found["SqsManagedSseEnabled"] == "true"
    assert "Policy" not in found
    for name, value, code in [
        ("VisibilityTimeout", "43201", "InvalidAttributeValue"),
        ("DelaySeconds", "-1", "InvalidAttributeValue"),
        ("FifoQueue", "false", "InvalidAttributeName"),
        ("Colour", "red", "InvalidAttributeName"),
    ]:
        refused = sqs.refused("set_queue_attributes", QueueUrl=url, Attributes={name: value})
        assert refused[0] == code
    assert sqs.refused("get_queue_attributes", QueueUrl=url, AttributeNames=["Colour"]) == (
        "InvalidAttributeName",
        "Unknown Attribute Colour.",
    )


def test_texts_of_attributes_are_bounded(sqs: Place) -> None:
    url = sqs.make()
    sqs.make("dead")
    redrive = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead"}
    allow = {"redrivePermission": "byQueue"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "k" * 2_048})
    for name, value in (
        ("KmsMasterKeyId", "k" * 2_049),
        ("RedrivePolicy", json.dumps(redrive | {"maxReceiveCount": 1, "more": "x" * 30_000})),
        ("RedrivePolicy", json.dumps(redrive | {"maxReceiveCount": 1}) + " " * 30_000),
        ("RedriveAllowPolicy", json.dumps(allow | {"sourceQueueArns": ["x" * 30_000]})),
    ):
        code, text = sqs.refused("set_queue_attributes", QueueUrl=url, Attributes={name: value})
        assert code == "InvalidAttributeValue"
        assert text.startswith(f"Invalid value for the parameter {name}.")
        given = {"QueueName": "more", "Attributes": {name: value}}
        assert sqs.refused("create_queue", **given)[0] == "InvalidAttributeValue"
    names = {"AttributeNames": ["KmsMasterKeyId", "RedrivePolicy", "RedriveAllowPolicy"]}
    assert sqs.get_queue_attributes(QueueUrl=url, **names)["Attributes"] == {
        "KmsMasterKeyId": "k" * 2_048
    }
    # Clients end a queue's encryption in this way.
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": ""})


def test_tags_are_set_listed_and_removed(sqs: Place) -> None:
    url = sqs.create_queue(QueueName="mail", tags={"team": "a"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"cost": "b"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["team"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"cost": "b"}


def test_a_permission_is_a_statement_of_the_policy(sqs: Place) -> None:
    url = sqs.make()
    sqs.add_permission(
        QueueUrl=url, Label="one", AWSAccountIds=["111111111111"], Actions=["SendMessage"]
    )
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
    [statement] = json.loads(attributes["Policy"])["Statement"]
    assert statement["Action"] == "SQS:SendMessage"
    assert statement["Principal"] == {"AWS": "arn:aws:iam::111111111111:root"}
    sqs.remove_permission(QueueUrl=url, Label="one")
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])


# Beyond SQS ---------------------------------------------------------------------------------------


def _ours(**given: str) -> dict[str, Any]:
    return {
        f"x-shardq-{name.replace('_', '-')}": {"DataType": "String", "StringValue": value}
        for name, value in given.items()
    }


def test_a_message_may_be_delayed_for_years_moved_and_cancelled_by_its_key(timed: Place) -> None:
    url = timed.make()

    def send(**given: str) -> str:
        sent = timed.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=_ours(**given))
        made: str = sent["MessageId"]
        return made

    first = send(key="order-7", delay="730d")
    assert send(key="order-7", delay="730d") == first
    assert send(command="move", key="order-7", delay="60") == first
    timed.pass_by(59)
    assert timed.got(url) == []
    timed.pass_by(2)
    [got] = timed.got(url, MessageAttributeNames=["All"])
    assert (got["MessageId"], "MessageAttributes" in got) == (first, False)
    timed.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    second = send(key="order-8", delay="60")
    assert send(command="cancel", key="order-8") == second
    refused = timed.refused(
        "send_message",
        QueueUrl=url,
        MessageBody="x",
        MessageAttributes=_ours(command="cancel", key="order-8"),
    )
    assert refused[1] == (
        "Value order-8 for parameter x-shardq-key is invalid. Reason: No message of the queue has "
        "this key."
    )


def test_a_delay_that_is_none_fails_its_entry_of_a_batch_alone(sqs: Place) -> None:
    url = sqs.make()
    delays = [{}, {"x-shardq-delay": {"DataType": "String", "StringValue": "soon"}}]
    sent = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": str(n), "MessageBody": str(n), "MessageAttributes": one}
            for n, one in enumerate(delays)
        ],
    )
    assert [one["Id"] for one in sent["Successful"]] == ["0"]
    assert [(one["Id"], one["Code"]) for one in sent["Failed"]] == [("1", "InvalidParameterValue")]
    assert sqs.bodies(url) == ["0"]


def test_a_message_may_have_a_priority(sqs: Place) -> None:
    url = sqs.make()
    for priority in "20":
        sqs.send_message(
            QueueUrl=url, MessageBody=priority, MessageAttributes=_ours(priority=priority)
        )
    assert sqs.bodies(url, 1) == ["0"]
    refused = sqs.refused(
        "send_message", QueueUrl=url, MessageBody="x", MessageAttributes=_ours(colour="red")
    )
    assert "x-shardq-colour is not known" in refused[1]


# Time ---------------------------------------------------------------------------------------------


def test_a_queue_s_delay_holds_for_what_has_none_and_for_python_too(timed: Place) -> None:
    url = timed.make(DelaySeconds="60")
    timed.send_message(QueueUrl=url, MessageBody="later")
    timed.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    timed.db.queue("mail").put("python")
    assert timed.bodies(url, VisibilityTimeout=100) == ["now"]
    counts = timed.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesDelayed"] == "2"
    timed.pass_by(61)
    assert sorted(timed.bodies(url)) == ["later", "python"]
    timed.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    timed.send_message(QueueUrl=url, MessageBody="soon")
    timed.pass_by(1)
    assert timed.bodies(url) == ["soon"]


def test_a_message_older_than_the_retention_is_gone(timed: Place) -> None:
    url = timed.make(MessageRetentionPeriod="60")
    timed.send_message(QueueUrl=url, MessageBody="old")
    timed.pass_by(61)
    timed.send_message(QueueUrl=url, MessageBody="new")
    assert timed.bodies(url) == ["new"]


def test_a_full_queue_refuses_messages(sqs: Place) -> None:
    sqs.db.queue("mail", depth_max=1).put("x")
    url = sqs.get_queue_url(QueueName="mail")["QueueUrl"]
    code, text = sqs.refused("send_message", QueueUrl=url, MessageBody="y")
    assert code == "OverLimit"
    assert "depth_max" in text
