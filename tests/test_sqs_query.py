"""The SQS endpoint by the query protocol, as older SDKs and curl speak it."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from hosted import hosted

import shardq
from shardq.server import application
from shardq.server.sqs.xml import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION = "2012-11-05"


class Query:
    """A client that sends forms."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, action: str, path: str = "/", **fields: str) -> list[tuple[str, str]]:
        """Name and text of each element without children, of the answer to a form."""
        form = {"Action": action, "Version": _VERSION}
        form |= {name.replace("__", "."): value for name, value in fields.items()}
        return self.send(path, urlencode(form).encode())

    def send(self, path: str, body: bytes | None) -> list[tuple[str, str]]:
        try:
            with urllib.request.urlopen(self.url + path, body) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
        root = ElementTree.fromstring(text)
        assert root.tag.startswith(f"{{{NAMESPACE}}}")
        found = [
            (one.tag.rpartition("}")[2], one.text or "") for one in root.iter() if not len(one)
        ]
        return [(name, value) for name, value in found if name != "RequestId"]


@pytest.fixture
def query() -> Iterator[Query]:
    with shardq.connect("sqlite://") as db, hosted(application(db)) as url:
        yield Query(url)


def test_a_message_is_sent_received_and_deleted_by_forms(query: Query) -> None:
    [(_, url)] = query(
        "CreateQueue",
        QueueName="mail",
        Attribute__1__Name="VisibilityTimeout",
        Attribute__1__Value="40",
        Tag__1__Key="team",
        Tag__1__Value="a",
    )
    assert query("ListQueueTags", QueueUrl=url) == [("Key", "team"), ("Value", "a")]
    sent = dict(
        query(
            "SendMessage",
            "/000000000000/mail",
            MessageBody="a\r<&>\n",
            MessageAttribute__1__Name="count",
            MessageAttribute__1__Value__DataType="Number",
            MessageAttribute__1__Value__StringValue="5",
            MessageAttribute__2__Name="image",
            MessageAttribute__2__Value__DataType="Binary",
            MessageAttribute__2__Value__BinaryValue="AP8=",
        )
    )
    got = query(
        "ReceiveMessage",
        QueueUrl=url,
        AttributeName__1="ApproximateReceiveCount",
        MessageAttributeName__1="All",
    )
    found = dict(got)
    assert found["Body"] == "a\r<&>\n"
    assert found["MessageId"] == sent["MessageId"]
    assert found["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert {("Name", "count"), ("StringValue", "5"), ("BinaryValue", "AP8=")} <= {*got}
    assert query("DeleteMessage", QueueUrl=url, ReceiptHandle=found["ReceiptHandle"]) == []
    assert query("ReceiveMessage", QueueUrl=url) == [("ReceiveMessageResult", "")]


def test_a_batch_by_a_form_has_an_answer_for_each_entry(query: Query) -> None:
    query("CreateQueue", QueueName="mail")
    got = query(
        "SendMessageBatch",
        "/000000000000/mail",
        SendMessageBatchRequestEntry__2__Id="b",
        SendMessageBatchRequestEntry__2__MessageBody="2",
        SendMessageBatchRequestEntry__2__DelaySeconds="901",
        SendMessageBatchRequestEntry__1__Id="a",
        SendMessageBatchRequestEntry__1__MessageBody="1",
    )
    assert [value for name, value in got if name == "Id"] == ["a", "b"]
    assert ("SenderFault", "true") in got
    assert ("Code", "InvalidParameterValue") in got


def test_errors_by_forms_have_the_codes_and_texts_of_old(query: Query) -> None:
    assert query("SendMessage", QueueUrl="nowhere", MessageBody="x") == [
        ("Type", "Sender"),
        ("Code", "AWS.SimpleQueueService.NonExistentQueue"),
        ("Message", "The specified queue does not exist for this wsdl version."),
        ("Detail", ""),
    ]
    assert ("Code", "InvalidAction") in query("Explode")
    assert ("Code", "MissingAction") in query.send("/", b"")
    assert ("Code", "MissingParameter") in query("SendMessage", MessageBody="x")


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"a=%ff",
        b"Action=SendMessage&a.b=1&a=2",
        b"Action=SendMessage&a=2&a.b=1",
        b"Action=CreateQueue&QueueName=mail&Attribute.x.Name=1",
        b"Action=CreateQueue&QueueName=mail&Attribute.99999999.Name=1",
        b"Action=CreateQueue&QueueName=mail&Attribute.1=1",
        b"Action=CreateQueue&QueueName.x=mail",
        b"Action=ReceiveMessage&QueueUrl=mail&MaxNumberOfMessages=x",
        b"&".join(b"a%d=1" % n for n in range(3_000)),
    ],
)
def test_a_damaged_form_is_refused_and_blamed_on_its_sender(query: Query, body: bytes) -> None:
    query("CreateQueue", QueueName="mail")
    assert ("Type", "Sender") in query.send("/", body)


def test_a_form_may_be_in_the_url(query: Query) -> None:
    query("CreateQueue", QueueName="mail")
    got = query.send(f"/?Action=GetQueueUrl&QueueName=mail&Version={_VERSION}", None)
    assert got == [("QueueUrl", f"{query.url}/000000000000/mail")]
