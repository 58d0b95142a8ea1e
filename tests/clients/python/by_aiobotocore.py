"""One round of aiobotocore: two queues, one of them for the dead, and a FIFO queue."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiobotocore.session import get_session
from botocore.exceptions import ClientError


async def main(name: str) -> None:
    session = get_session()
    async with session.create_client("sqs") as sqs:
        await standard(sqs, name)
        await fifo(sqs, f"{name}.fifo")
    async with session.create_client(
        "sqs", aws_access_key_id="unknown", aws_secret_access_key="wrong"
    ) as sqs:
        try:
            await sqs.list_queues()
        except ClientError as refused:
            assert refused.response["Error"]["Code"] == "InvalidClientTokenId"  # noqa: PT017
        else:
            raise AssertionError("an unknown key was accepted")


async def standard(sqs: Any, name: str) -> None:
    dead = (await sqs.create_queue(QueueName=f"{name}-dead"))["QueueUrl"]
    got = await sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    target = {"deadLetterTargetArn": got["Attributes"]["QueueArn"], "maxReceiveCount": 2}
    attributes = {"RedrivePolicy": json.dumps(target), "VisibilityTimeout": "5"}
    url = (await sqs.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"]

    # The poll is open when the message comes.
    poll = asyncio.create_task(received(sqs, url))
    await sqs.send_message(QueueUrl=url, MessageBody="hellö")
    [message] = await poll
    assert message["Body"] == "hellö"
    await extend(sqs, url, message, 60)
    assert await received(sqs, url, WaitTimeSeconds=6) == []
    await delete(sqs, url, message)

    await sqs.send_message(QueueUrl=url, MessageBody="poison")
    for _ in range(2):
        [message] = await received(sqs, url)
        await extend(sqs, url, message, 0)
    assert await received(sqs, url, WaitTimeSeconds=0) == []
    [message] = await received(sqs, dead)
    assert message["Body"] == "poison"
    await extend(sqs, dead, message, 0)
    await sqs.start_message_move_task(SourceArn=target["deadLetterTargetArn"])
    [message] = await received(sqs, url)
    assert message["Body"] == "poison"
    await delete(sqs, url, message)


async def fifo(sqs: Any, name: str) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = (await sqs.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"]
    for body in ("a1", "a2", "b1", "a1"):
        await sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body[0])
    messages = await received(sqs, url, MaxNumberOfMessages=10)
    assert [one["Body"] for one in messages if one["Body"] != "b1"] == ["a1", "a2"]
    await asyncio.gather(*(delete(sqs, url, message) for message in messages))


async def received(sqs: Any, url: str, **given: Any) -> list[Any]:
    got = await sqs.receive_message(**{"QueueUrl": url, "WaitTimeSeconds": 20} | given)
    found: list[Any] = got.get("Messages", [])
    return found


async def extend(sqs: Any, url: str, message: Any, seconds: int) -> None:
    handle = message["ReceiptHandle"]
    await sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds
    )


async def delete(sqs: Any, url: str, message: Any) -> None:
    await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
