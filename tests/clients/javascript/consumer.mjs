// One round of sqs-consumer: what a handler refuses comes again, dies, is moved back and is handled.
import assert from "node:assert/strict";
import { SQS } from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const sqs = new SQS({ endpoint: process.env.AWS_ENDPOINT_URL_SQS });
const name = process.argv[2];

async function make(QueueName, Attributes) {
  return (await sqs.createQueue({ QueueName, Attributes })).QueueUrl;
}

// Handles messages until as many have been handled; those that `refuses` names fail.
function handle(queueUrl, count, { refuses = () => false, ...more } = {}) {
  return new Promise((resolve, reject) => {
    const handled = [];
    const consumer = Consumer.create({
      queueUrl,
      sqs,
      waitTimeSeconds: 20,
      visibilityTimeout: 30,
      terminateVisibilityTimeout: true,
      // It stops after the message has been made visible again.
      pollingCompleteWaitTimeMs: 10_000,
      handleMessage: async (message) => {
        handled.push(message.Body);
        if (refuses(message.Body)) throw new Error("refused");
        return message;
      },
      ...more,
    });
    const ended = () => handled.length >= count && consumer.stop();
    consumer.on("message_processed", ended);
    consumer.on("processing_error", ended);
    consumer.on("stopped", () => resolve(handled));
    consumer.on("error", (error) => {
      consumer.stop();
      reject(error);
    });
    consumer.start();
  });
}

const dead = await make(`${name}-dead`);
const { Attributes } = await sqs.getQueueAttributes({ QueueUrl: dead, AttributeNames: ["QueueArn"] });
const target = { deadLetterTargetArn: Attributes.QueueArn, maxReceiveCount: 2 };
const url = await make(name, { RedrivePolicy: JSON.stringify(target) });
await sqs.sendMessage({ QueueUrl: url, MessageBody: "poison" });
assert.deepEqual(await handle(url, 2, { refuses: (body) => body === "poison" }), ["poison", "poison"]);
assert.equal((await sqs.receiveMessage({ QueueUrl: url })).Messages, undefined);
await sqs.startMessageMoveTask({ SourceArn: target.deadLetterTargetArn });
assert.deepEqual(await handle(url, 1, { heartbeatInterval: 10 }), ["poison"]);

// The heartbeat keeps a message longer than its visibility.
await sqs.sendMessage({ QueueUrl: url, MessageBody: "long" });
const long = { visibilityTimeout: 3, heartbeatInterval: 1 };
const pause = () => new Promise((resolve) => setTimeout(resolve, 5_000));
const seen = [];
const handleMessage = async (message) => {
  seen.push(message.Body);
  await pause();
  return message;
};
const consumer = Consumer.create({ queueUrl: url, sqs, handleMessage, ...long });
const stopped = new Promise((resolve, reject) => {
  consumer.on("message_processed", () => consumer.stop());
  consumer.on("stopped", resolve);
  consumer.on("error", reject);
});
consumer.start();
await stopped;
assert.deepEqual(seen, ["long"]);

const fifo = await make(`${name}.fifo`, { FifoQueue: "true", ContentBasedDeduplication: "true" });
for (const body of ["a1", "a2", "a1", "a3"]) {
  await sqs.sendMessage({ QueueUrl: fifo, MessageBody: body, MessageGroupId: "a" });
}
assert.deepEqual(await handle(fifo, 3, { suppressFifoWarning: true }), ["a1", "a2", "a3"]);

const wrong = { accessKeyId: process.env.AWS_ACCESS_KEY_ID, secretAccessKey: "wrong" };
const stranger = new SQS({ endpoint: process.env.AWS_ENDPOINT_URL_SQS, credentials: wrong });
await assert.rejects(handle(url, 1, { sqs: stranger }), { code: "SignatureDoesNotMatch" });
