"""Who may do what by SQS: signatures, levels, policies of queues, and what is recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from hosted import hosted, sqs_at
from msgspec.structs import replace

import shardq
from shardq.records.actions import Actions
from shardq.server import application
from shardq.server.access import Access
from shardq.server.accounts import Accounts
from shardq.server.endpoints import EndpointAddress, Endpoints
from shardq.server.sqs import policy
from shardq.server.sqs.errors import SqsRefusal

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Place:
    """A server with accounts, and clients that sign."""

    db: shardq.Connection
    url: str
    accounts: Accounts

    def client(self, account: str = "shop", levels: str = "all", **more: Any) -> Any:
        made = self.accounts.create(account)
        key = self.accounts.add_key(made, levels=levels, is_derived=True, **more)
        return sqs_at(self.url, key=key.key.id, secret=key.secret)


@pytest.fixture
def place() -> Iterator[Place]:
    with shardq.connect("sqlite://") as db:
        accounts = Accounts(db._home.store, db._home.clock)
        accounts.create("shop")
        with hosted(application(db, access=Access(db))) as url:
            yield Place(db, url, accounts)


def refused(call: Any, **given: Any) -> str:
    with pytest.raises(ClientError) as error:
        call(**given)
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    code: str = error.value.response["Error"]["Code"]
    return code


def test_a_signed_request_is_carried_out_and_a_wrong_secret_is_not(place: Place) -> None:
    client = place.client()
    url = client.create_queue(QueueName="mail")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="x")
    assert [one["Body"] for one in client.receive_message(QueueUrl=url)["Messages"]] == ["x"]
    known = client._request_signer._credentials.access_key
    wrong = sqs_at(place.url, key=known, secret="wrong")
    assert refused(wrong.send_message, QueueUrl=url, MessageBody="x") == "SignatureDoesNotMatch"
    unknown = sqs_at(place.url, key="SQ" + "A" * 18)
    assert refused(unknown.send_message, QueueUrl=url, MessageBody="x") == "InvalidClientTokenId"


def test_a_key_is_for_its_levels_and_queues(place: Place) -> None:
    url = place.client().create_queue(QueueName="mail")["QueueUrl"]
    place.client().create_queue(QueueName="orders")
    sender = place.client(levels="put", queues=["mail*"])
    sender.send_message(QueueUrl=url, MessageBody="x")
    for call, given in [
        (sender.receive_message, {}),
        (sender.delete_message, {"ReceiptHandle": "x"}),
        (sender.purge_queue, {}),
        (sender.get_queue_attributes, {}),
        (sender.set_queue_attributes, {"Attributes": {}}),
        (sender.delete_queue, {}),
    ]:
        assert refused(call, QueueUrl=url, **given) == "AccessDenied"
    assert refused(sender.create_queue, QueueName="mail") == "AccessDenied"
    assert refused(sender.list_queues) == "AccessDenied"
    assert refused(sender.send_message, QueueUrl="orders", MessageBody="x") == "AccessDenied"


def test_another_account_may_do_what_the_queue_s_policy_says(place: Place) -> None:
    ours, theirs = place.client(), place.client("guest")
    url = ours.create_queue(QueueName="mail")["QueueUrl"]
    guest = place.accounts.create("guest").id
    assert refused(theirs.send_message, QueueUrl=url, MessageBody="x") == "AccessDenied"
    ours.add_permission(QueueUrl=url, Label="one", AWSAccountIds=[guest], Actions=["SendMessage"])
    sent = theirs.send_message(QueueUrl=url, MessageBody="x")
    assert refused(theirs.receive_message, QueueUrl=url) == "AccessDenied"
    [got] = ours.receive_message(QueueUrl=url, AttributeNames=["SenderId"])["Messages"]
    assert got["MessageId"] == sent["MessageId"]
    assert got["Attributes"] == {"SenderId": guest}
    own = theirs.create_queue(QueueName="mail")["QueueUrl"]
    assert own != url
    assert "Messages" not in theirs.receive_message(QueueUrl=own)


def test_a_policy_takes_no_more_permissions_than_it_can_have(place: Place) -> None:
    client, theirs = place.client(), place.client("guest")
    url = client.create_queue(QueueName="mail")["QueueUrl"]
    guest = place.accounts.create("guest").id
    given = {"QueueUrl": url, "AWSAccountIds": [guest], "Actions": ["SendMessage"]}
    for number in range(20):
        client.add_permission(Label=f"{number}", **given)
    assert refused(client.add_permission, Label="20", **given) == "OverLimit"
    client.send_message(QueueUrl=url, MessageBody="x")
    theirs.send_message(QueueUrl=url, MessageBody="x")
    client.remove_permission(QueueUrl=url, Label="0")
    client.add_permission(Label="20", **given)


def test_a_policy_takes_no_permission_that_makes_it_too_long(place: Place) -> None:
    client = place.client()
    url = client.create_queue(QueueName="mail")["QueueUrl"]
    accounts = [f"{number:012}" for number in range(400)]
    given = {"QueueUrl": url, "AWSAccountIds": accounts, "Actions": ["SendMessage"]}
    client.add_permission(Label="one", **given)
    assert refused(client.add_permission, Label="two", **given) == "OverLimit"
    client.send_message(QueueUrl=url, MessageBody="x")


def test_a_stored_policy_that_cannot_be_read_is_replaced_by_the_queue_s_account(
    place: Place,
) -> None:
    url = place.client().create_queue(QueueName="mail")["QueueUrl"]
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}
    text = json.dumps({"Statement": [statement] * 21})
    # An older server may have stored such a policy.
    Endpoints(place.db._home.store).change(
        EndpointAddress("000000000000", "us-east-1", "mail"),
        lambda before: replace(before, attributes={"Policy": text}),
    )
    with hosted(application(place.db, access=Access(place.db))) as other:
        later = Place(place.db, other, place.accounts)
        client, theirs, weak = later.client(), later.client("guest"), later.client(levels="put")
        assert refused(theirs.send_message, QueueUrl=url, MessageBody="x") == "AccessDenied"
        with pytest.raises(ClientError, match="Reason: it needs 1 to 20 statements"):
            client.send_message(QueueUrl=url, MessageBody="x")
        emptied = {"QueueUrl": url, "Attributes": {"Policy": ""}}
        assert refused(theirs.set_queue_attributes, **emptied) == "AccessDenied"
        assert refused(weak.set_queue_attributes, **emptied) == "AccessDenied"
        client.set_queue_attributes(**emptied)
        client.send_message(QueueUrl=url, MessageBody="x")


def test_commands_that_change_something_are_recorded(place: Place) -> None:
    client = place.client()
    for _ in range(2):
        url = client.create_queue(QueueName="mail")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="secret")
    client.tag_queue(QueueUrl=url, Tags={"a": "b"})
    client.purge_queue(QueueUrl=url)
    with pytest.raises(ClientError):
        client.purge_queue(QueueUrl=url)
    client.delete_queue(QueueUrl=url)
    found = [*Actions(place.db._home.store, place.db._home.clock).last(100)]
    told = [(one.what, one.object, one.outcome) for one in found]
    assert sorted(told) == [
        ("alter", "mail", "done"),
        ("create", "mail", "done"),
        ("drop", "mail", "done"),
        ("purge", "mail", "PurgeQueueInProgress"),
        ("purge", "mail", "done"),
    ]
    assert "secret" not in str(found)


# Policies -----------------------------------------------------------------------------------------


def policy_text(**statement: Any) -> str:
    usual = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [usual | statement]})


def asked(**more: str) -> policy.AskedAccess:
    usual = {
        "account": "111111111111",
        "action": "SendMessage",
        "arn": "arn:aws:sqs:us-east-1:000000000000:mail",
        "client": "10.1.2.3",
    }
    return policy.AskedAccess(**(usual | more))


@pytest.mark.parametrize(
    ("statement", "decision"),
    [
        ({}, True),
        ({"Effect": "Deny"}, False),
        ({"Action": "SQS:*"}, True),
        ({"Action": ["sqs:ReceiveMessage", "sqs:Send*"]}, True),
        ({"Action": "sqs:ReceiveMessage"}, None),
        ({"Principal": {"AWS": "111111111111"}}, True),
        ({"Principal": {"AWS": ["arn:aws:iam::111111111111:root"]}}, True),
        ({"Principal": {"AWS": "222222222222"}}, None),
        ({"Resource": "arn:aws:sqs:*:*:mail"}, True),
        ({"Resource": "arn:aws:sqs:us-east-1:000000000000:orders"}, None),
        ({"Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}, True),
        ({"Condition": {"NotIpAddress": {"aws:SourceIp": ["10.0.0.0/8"]}}}, None),
        ({"Condition": {"IpAddress": {"AWS:SourceIP": "192.168.0.1"}}}, None),
        ({"Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:sns:*"}}}, None),
        ({"Condition": {"ArnLike": {"aws:SourceArn": "*"}}}, None),
        ({"Condition": {"StringLike": {"aws:SourceArn": ["*"]}}}, None),
        ({"Condition": {"StringEquals": {"aws:SourceArn": ""}}}, None),
        ({"Condition": {"ArnNotLike": {"aws:SourceArn": "*"}}}, True),
        ({"Condition": {"ArnNotEquals": {"aws:SourceArn": "arn:aws:sns:*"}}}, True),
    ],
)
def test_a_policy_says_who_may_do_what(statement: dict[str, Any], decision: bool | None) -> None:
    assert policy.decide(policy.read(policy_text(**statement)), asked()) is decision


def test_a_policy_is_decoded_once_and_stays_as_it_was_read() -> None:
    text = policy_text()
    found = policy.read(text)
    added = policy.with_permission(
        text, label="b", accounts=["1" * 12], actions=["SendMessage"], arn=asked().arn
    )
    assert policy.read(text) is found
    assert len(policy.statements_of(policy.read(text))) == 1
    assert policy.without_permission(added, "b")
    assert len(policy.statements_of(policy.read(added))) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "[" * 100_000,
        json.dumps({"Version": "2012-10-17", "Statement": []}),
        json.dumps({"Version": "2020-01-01", "Statement": []}),
        policy_text(Effect="Perhaps"),
        policy_text(NotAction="sqs:SendMessage"),
        policy_text(Action="s3:GetObject"),
        policy_text(Principal={"Service": "sns.amazonaws.com"}),
        policy_text(Principal={"AWS": "ada"}),
        policy_text(Principal={"AWS": []}),
        policy_text(Principal={"AWS": "arn:aws:iam::111111111111:user/ada"}),
        policy_text(Principal={"AWS": "arn:aws:iam::111111111111:role/root"}),
        policy_text(Principal={"AWS": ["111111111111", "arn:aws:sts::111111111111:root"]}),
        policy_text(Action=[]),
        policy_text(Resource=[]),
        policy_text(Condition={"IpAddress": {"aws:SourceIp": []}}),
        policy_text(Condition={"StringEquals": {"aws:username": "ada"}}),
        policy_text(Condition={"DateLessThan": {"aws:SourceIp": "10.0.0.0/8"}}),
        policy_text(Condition={"IpAddress": {"aws:SourceIp": "everywhere"}}),
        policy_text(Resource="*a*a*a*a*a*a*b"),
        policy_text(Resource="[a-z]"),
        policy_text(Resource="x" * 30_000),
    ],
)
def test_a_policy_that_is_not_evaluated_is_refused(text: str) -> None:
    with pytest.raises(SqsRefusal, match="Invalid value for the parameter Policy"):
        policy.read(text)
