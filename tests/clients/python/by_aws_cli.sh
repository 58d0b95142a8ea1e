#!/usr/bin/env bash
# One round of AWS CLI: two queues, one of them for the dead, and a FIFO queue. Its argument is the queue's name.
set -euo pipefail
name=$1
export AWS_DEFAULT_OUTPUT=text

# Without the option version 1 asks AWS itself.
sqs() { aws --endpoint-url "$AWS_ENDPOINT_URL_SQS" sqs "$@"; }
make() { sqs create-queue --queue-name "$@" --query QueueUrl; }
receive() { # the receipt and the body
    sqs receive-message --wait-time-seconds 20 --queue-url "$@" --query 'Messages[].[ReceiptHandle, Body]'
}
expect() { # URL BODY: sets $receipt
    local body
    read -r receipt body < <(receive "$1")
    [ "$body" = "$2" ] || { echo "expected $2 in $1, got $body" >&2; exit 1; }
}
extend() { sqs change-message-visibility --queue-url "$1" --receipt-handle "$receipt" --visibility-timeout "$2"; }
delete() { sqs delete-message --queue-url "$1" --receipt-handle "$receipt"; }

dead=$(make "$name-dead")
arn=$(sqs get-queue-attributes --queue-url "$dead" --attribute-names QueueArn --query Attributes.QueueArn)
policy='{\"deadLetterTargetArn\": \"'$arn'\", \"maxReceiveCount\": 2}'
url=$(make "$name" --attributes "{\"RedrivePolicy\": \"$policy\", \"VisibilityTimeout\": \"8\"}")

sqs send-message --queue-url "$url" --message-body hellö --query MessageId >/dev/null
expect "$url" hellö
extend "$url" 60
[ "$(receive "$url" --wait-time-seconds 9)" = None ]
delete "$url"

sqs send-message --queue-url "$url" --message-body poison --query MessageId >/dev/null
for _ in 1 2; do
    expect "$url" poison
    extend "$url" 0
done
[ "$(receive "$url" --wait-time-seconds 0)" = None ]
expect "$dead" poison
extend "$dead" 0
sqs start-message-move-task --source-arn "$arn" --query TaskHandle >/dev/null
expect "$url" poison
delete "$url"

fifo=$(make "$name.fifo" --attributes FifoQueue=true,ContentBasedDeduplication=true)
for body in a1 a2 a1; do
    sqs send-message --queue-url "$fifo" --message-body "$body" --message-group-id a --query MessageId >/dev/null
done
for body in a1 a2; do
    expect "$fifo" "$body"
    delete "$fifo"
done

if refused=$(AWS_SECRET_ACCESS_KEY=wrong sqs list-queues 2>&1); then
    echo "a wrong secret was accepted" >&2
    exit 1
fi
[[ $refused == *SignatureDoesNotMatch* ]]
