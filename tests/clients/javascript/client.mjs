// One round of the SDK for JavaScript, v3: two queues, one of them for the dead, and a FIFO queue.
import assert from "node:assert/strict";
import { SQS } from "@aws-sdk/client-sqs";

const endpoint = process.env.AWS_ENDPOINT_URL_SQS;
const name = process.argv[2];
const sqs = new SQS({ endpoint });

async function make(QueueName, Attributes) {
  return (await sqs.createQueue({ QueueName, Attributes })).QueueUrl;
}
async function receive(QueueUrl, more = {}) {
  const got = await sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 20, MessageAttributeNames: ["All"], ...more });
  return got.Messages ?? [];
}
function extend(QueueUrl, { ReceiptHandle }, VisibilityTimeout) {
  return sqs.changeMessageVisibility({ QueueUrl, ReceiptHandle, VisibilityTimeout });
}
function remove(QueueUrl, { ReceiptHandle }) {
  return sqs.deleteMessage({ QueueUrl, ReceiptHandle });
}

const dead = await make(`${name}-dead`);
const { Attributes } = await sqs.getQueueAttributes({ QueueUrl: dead, AttributeNames: ["QueueArn"] });
const target = { deadLetterTargetArn: Attributes.QueueArn, maxReceiveCount: 2 };
const url = await make(name, { RedrivePolicy: JSON.stringify(target), VisibilityTimeout: "5" });

const kind = { kind: { DataType: "String", StringValue: "new" } };
await sqs.sendMessage({ QueueUrl: url, MessageBody: "hellö", MessageAttributes: kind });
let [message] = await receive(url);
assert.equal(message.Body, "hellö");
assert.equal(message.MessageAttributes.kind.StringValue, "new");
await extend(url, message, 60);
assert.deepEqual(await receive(url, { WaitTimeSeconds: 6 }), []);
await remove(url, message);

await sqs.sendMessage({ QueueUrl: url, MessageBody: "poison" });
for (let n = 0; n < 2; n++) {
  [message] = await receive(url);
  await extend(url, message, 0);
}
assert.deepEqual(await receive(url, { WaitTimeSeconds: 0 }), []);
[message] = await receive(dead);
assert.equal(message.Body, "poison");
await extend(dead, message, 0);
await sqs.startMessageMoveTask({ SourceArn: target.deadLetterTargetArn });
[message] = await receive(url);
assert.equal(message.Body, "poison");
await remove(url, message);

const fifo = await make(`${name}.fifo`, { FifoQueue: "true", ContentBasedDeduplication: "true" });
const Entries = ["a1", "a2", "b1"].map((body) => ({ Id: body, MessageBody: body, MessageGroupId: body[0] }));
assert.equal((await sqs.sendMessageBatch({ QueueUrl: fifo, Entries })).Successful.length, 3);
await sqs.sendMessage({ QueueUrl: fifo, MessageBody: "a1", MessageGroupId: "a" });
const messages = await receive(fifo, { MaxNumberOfMessages: 10 });
assert.deepEqual(messages.map((one) => one.Body).filter((body) => body !== "b1"), ["a1", "a2"]);
await Promise.all(messages.map((one) => remove(fifo, one)));

const wrong = { accessKeyId: process.env.AWS_ACCESS_KEY_ID, secretAccessKey: "wrong" };
await assert.rejects(new SQS({ endpoint, credentials: wrong }).listQueues(), { name: "SignatureDoesNotMatch" });
