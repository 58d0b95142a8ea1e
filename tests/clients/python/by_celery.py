"""One round of Celery: a worker, a queue with another for its dead, and a FIFO queue.

A task that is refused goes to the dead letters; moved back, it succeeds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import boto3
from botocore.exceptions import ClientError
from celery import Celery
from celery.exceptions import Reject

SEEN = Path("seen.txt")
MENDED = Path("mended")
TIMEOUT_S = 60

key = quote(os.environ["AWS_ACCESS_KEY_ID"], safe="")
secret = quote(os.environ["AWS_SECRET_ACCESS_KEY"], safe="")
address = os.environ["AWS_ENDPOINT_URL_SQS"].removeprefix("http://")
OPTIONS = {
    "region": os.environ["AWS_DEFAULT_REGION"],
    "is_secure": False,
    "wait_time_seconds": 1,
    "polling_interval": 0.1,
}
app = Celery("by_celery", broker=f"sqs://{key}:{secret}@{address}")
app.conf.task_acks_late = True
app.conf.worker_enable_remote_control = False
app.conf.broker_transport_options = OPTIONS


@app.task(name="note")
def note(text: str) -> None:
    with SEEN.open("a") as file:
        file.write(f"{text}\n")


@app.task(name="late")
def late() -> None:
    """Refuse once: the worker makes the message visible again after a second."""
    is_first = "late" not in seen()
    note("late")
    if is_first:
        raise Reject(requeue=True)


@app.task(name="poison")
def poison() -> None:
    if not MENDED.exists():
        raise Reject(requeue=False)
    note("mended")


def main(name: str) -> None:
    sqs = boto3.client("sqs")
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    got = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    target = {"deadLetterTargetArn": got["Attributes"]["QueueArn"], "maxReceiveCount": 2}
    attributes = {"RedrivePolicy": json.dumps(target), "VisibilityTimeout": "3"}
    sqs.create_queue(QueueName=name, Attributes=attributes)
    # Here a message is visible again in time only if the worker asks for that.
    fifo = {"FifoQueue": "true", "VisibilityTimeout": "600"}
    sqs.create_queue(QueueName=f"{name}.fifo", Attributes=fifo)

    words = ["-A", "by_celery", "worker", "--pool", "solo", "-Q", f"{name},{name}.fifo"]
    with subprocess.Popen([sys.executable, "-m", "celery", *words]) as worker:
        try:
            note.apply_async(["hellö"], queue=name)
            poison.apply_async(queue=name)
            late.apply_async(queue=f"{name}.fifo", MessageGroupId="b")
            for text in ("a1", "a2", "a3"):
                note.apply_async([text], queue=f"{name}.fifo", MessageGroupId="a")
            expect(worker, ["a1", "a2", "a3", "hellö", "late", "late"])
            assert [line for line in seen() if line[0] == "a"] == ["a1", "a2", "a3"]

            got = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20)
            [message] = got["Messages"]
            handle = message["ReceiptHandle"]
            sqs.change_message_visibility(QueueUrl=dead, ReceiptHandle=handle, VisibilityTimeout=0)
            MENDED.touch()
            sqs.start_message_move_task(SourceArn=target["deadLetterTargetArn"])
            expect(worker, ["a1", "a2", "a3", "hellö", "late", "late", "mended"])
        finally:
            worker.terminate()
    assert worker.returncode == 0

    wrong = Celery("wrong", broker=f"sqs://{key}:wrong@{address}")
    wrong.conf.broker_transport_options = OPTIONS
    try:
        wrong.send_task("note", ["never"], queue=name)
    except ClientError as refused:
        assert refused.response["Error"]["Code"] == "SignatureDoesNotMatch"  # noqa: PT017
    else:
        raise AssertionError("a wrong secret was accepted")


def seen() -> list[str]:
    return SEEN.read_text().split() if SEEN.exists() else []


def expect(worker: subprocess.Popen[bytes], lines: list[str]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while sorted(seen()) != lines:
        if time.monotonic() > end:
            raise AssertionError(f"expected {lines}, got {seen()}")
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the worker ended with {worker.wait(0.1)}")


if __name__ == "__main__":
    main(sys.argv[1])
