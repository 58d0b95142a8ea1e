// Command client is one round of the SDK for Go, v2: two queues, one of them for the dead, and a FIFO queue.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

var ctx = context.Background()

type queue struct {
	client *sqs.Client
	url    *string
}

func main() {
	name := os.Args[1]
	settings := must(config.LoadDefaultConfig(ctx))
	client := sqs.NewFromConfig(settings)

	dead := open(client, name+"-dead", nil)
	got := must(client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: dead.url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}}))
	arn := got.Attributes["QueueArn"]
	policy := fmt.Sprintf(`{"deadLetterTargetArn": %q, "maxReceiveCount": 2}`, arn)
	mail := open(client, name, map[string]string{"RedrivePolicy": policy, "VisibilityTimeout": "5"})

	mail.send("hellö", nil)
	message := mail.expect("hellö")
	if *message.MessageAttributes["kind"].StringValue != "new" {
		log.Fatalf("attributes: %v", message.MessageAttributes)
	}
	mail.extend(message, 60)
	if found := mail.receive(6); len(found) > 0 {
		log.Fatalf("not extended: %s", *found[0].Body)
	}
	mail.delete(message)

	mail.send("poison", nil)
	for range 2 {
		mail.extend(mail.expect("poison"), 0)
	}
	if found := mail.receive(0); len(found) > 0 {
		log.Fatalf("still there: %s", *found[0].Body)
	}
	dead.extend(dead.expect("poison"), 0)
	must(client.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: &arn}))
	mail.delete(mail.expect("poison"))

	fifo := open(client, name+".fifo", map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true"})
	for _, body := range []string{"a1", "a2", "a1"} {
		fifo.send(body, aws.String("a"))
	}
	var bodies []string
	for _, message := range fifo.receive(20) {
		bodies = append(bodies, *message.Body)
		fifo.delete(message)
	}
	if !slices.Equal(bodies, []string{"a1", "a2"}) {
		log.Fatalf("out of order or doubled: %v", bodies)
	}

	settings.Credentials = credentials.NewStaticCredentialsProvider(os.Getenv("AWS_ACCESS_KEY_ID"), "wrong", "")
	_, err := sqs.NewFromConfig(settings).ListQueues(ctx, nil)
	var refused smithy.APIError
	if !errors.As(err, &refused) || refused.ErrorCode() != "SignatureDoesNotMatch" {
		log.Fatalf("a wrong secret: %v", err)
	}
}

func open(client *sqs.Client, name string, attributes map[string]string) queue {
	made := must(client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes}))
	return queue{client, made.QueueUrl}
}

func (q queue) send(body string, group *string) {
	kind := types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String("new")}
	must(q.client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: q.url, MessageBody: &body, MessageGroupId: group,
		MessageAttributes: map[string]types.MessageAttributeValue{"kind": kind}}))
}

func (q queue) receive(seconds int32) []types.Message {
	got := must(q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: q.url, WaitTimeSeconds: seconds, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"}}))
	return got.Messages
}

func (q queue) expect(body string) types.Message {
	found := q.receive(20)
	if len(found) != 1 || *found[0].Body != body {
		log.Fatalf("expected %s, got %v", body, found)
	}
	return found[0]
}

func (q queue) extend(message types.Message, seconds int32) {
	must(q.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: q.url, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: seconds}))
}

func (q queue) delete(message types.Message) {
	must(q.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: q.url, ReceiptHandle: message.ReceiptHandle}))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
