"""One round of boto3: two queues, one of them for the dead, and a FIFO queue."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import boto3
from botocore.exceptions import ClientError

KIND = {"kind": {"DataType": "String", "StringValue": "new"}}
RAW = {"raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"}}


def main(name: str) -> None:
    sqs = boto3.client("sqs")
    dead = make(sqs, f"{name}-dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    target = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 2}
    url = make(sqs, name, RedrivePolicy=json.dumps(target), VisibilityTimeout="5")

    sqs.send_message(QueueUrl=url, MessageBody="hellö", MessageAttributes=KIND | RAW)
    [message] = received(sqs, url, MessageAttributeNames=["All"])
    assert message["Body"] == "hellö"
    assert message["MessageAttributes"] == KIND | RAW
    extend(sqs, url, message, 60)
    assert received(sqs, url, WaitTimeSeconds=6) == []
    delete(sqs, url, message)

    sqs.send_message(QueueUrl=url, MessageBody="poison")
    for _ in range(2):
        [message] = received(sqs, url)
        extend(sqs, url, message, 0)
    assert received(sqs, url, WaitTimeSeconds=0) == []
    [message] = received(sqs, dead)
    assert message["Body"] == "poison"
    extend(sqs, dead, message, 0)
    sqs.start_message_move_task(SourceArn=target["deadLetterTargetArn"])
    [message] = received(sqs, url)
    assert message["Body"] == "poison"
    delete(sqs, url, message)

    fifo = make(sqs, f"{name}.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    entries = [
        {"Id": body, "MessageBody": body, "MessageGroupId": body[0]} for body in ("a1", "a2", "b1")
    ]
    assert len(sqs.send_message_batch(QueueUrl=fifo, Entries=entries)["Successful"]) == 3
    sqs.send_message(QueueUrl=fifo, MessageBody="a1", MessageGroupId="a")
    messages = received(sqs, fifo, MaxNumberOfMessages=10)
    assert [one["Body"] for one in messages if one["Body"] != "b1"] == ["a1", "a2"]
    ends = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
    assert len(sqs.delete_message_batch(QueueUrl=fifo, Entries=ends)["Successful"]) == 3

    try:
        key = os.environ["AWS_ACCESS_KEY_ID"]
        boto3.client("sqs", aws_access_key_id=key, aws_secret_access_key="wrong").list_queues()
    except ClientError as refused:
        assert refused.response["Error"]["Code"] == "SignatureDoesNotMatch"  # noqa: PT017
    else:
        raise AssertionError("a wrong secret was accepted")


def make(sqs: Any, name: str, **attributes: str) -> str:
    url: str = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def received(sqs: Any, url: str, **given: Any) -> list[Any]:
    found: list[Any] = sqs.receive_message(**{"QueueUrl": url, "WaitTimeSeconds": 20} | given).get(
        "Messages", []
    )
    return found


def extend(sqs: Any, url: str, message: Any, seconds: int) -> None:
    handle = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)


def delete(sqs: Any, url: str, message: Any) -> None:
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


if __name__ == "__main__":
    main(sys.argv[1])
