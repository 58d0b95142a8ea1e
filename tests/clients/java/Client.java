import java.util.List;
import java.util.Map;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.SqsException;

/** One round of the SDK for Java, v2: two queues, one of them for the dead, and a FIFO queue. */
final class Client {
    private final SqsClient sqs;
    private final String url;

    private Client(SqsClient sqs, String name, Map<QueueAttributeName, String> attributes) {
        this.sqs = sqs;
        this.url = sqs.createQueue(one -> one.queueName(name).attributes(attributes)).queueUrl();
    }

    public static void main(String[] arguments) {
        String name = arguments[0];
        try (SqsClient sqs = SqsClient.create()) {
            standard(sqs, name);
            fifo(new Client(sqs, name + ".fifo", Map.of(
                QueueAttributeName.FIFO_QUEUE, "true",
                QueueAttributeName.CONTENT_BASED_DEDUPLICATION, "true")));
        }
        AwsBasicCredentials wrong = AwsBasicCredentials.create(System.getenv("AWS_ACCESS_KEY_ID"), "wrong");
        try (SqsClient sqs = SqsClient.builder()
                .credentialsProvider(StaticCredentialsProvider.create(wrong)).build()) {
            sqs.listQueues();
            throw new AssertionError("a wrong secret was accepted");
        } catch (SqsException refused) {
            check("SignatureDoesNotMatch", refused.awsErrorDetails().errorCode());
        }
    }

    private static void standard(SqsClient sqs, String name) {
        Client dead = new Client(sqs, name + "-dead", Map.of());
        String arn = sqs.getQueueAttributes(one -> one.queueUrl(dead.url).attributeNames(QueueAttributeName.QUEUE_ARN))
            .attributes().get(QueueAttributeName.QUEUE_ARN);
        String policy = "{\"deadLetterTargetArn\": \"" + arn + "\", \"maxReceiveCount\": 2}";
        Client mail = new Client(sqs, name, Map.of(
            QueueAttributeName.REDRIVE_POLICY, policy,
            QueueAttributeName.VISIBILITY_TIMEOUT, "5"));

        MessageAttributeValue kind = MessageAttributeValue.builder().dataType("String").stringValue("new").build();
        sqs.sendMessage(one -> one.queueUrl(mail.url).messageBody("hellö").messageAttributes(Map.of("kind", kind)));
        Message message = mail.expect("hellö");
        check("new", message.messageAttributes().get("kind").stringValue());
        mail.extend(message, 60);
        check(List.of(), mail.receive(6));
        mail.delete(message);

        sqs.sendMessage(one -> one.queueUrl(mail.url).messageBody("poison"));
        for (int n = 0; n < 2; n++) {
            mail.extend(mail.expect("poison"), 0);
        }
        check(List.of(), mail.receive(0));
        dead.extend(dead.expect("poison"), 0);
        sqs.startMessageMoveTask(one -> one.sourceArn(arn));
        mail.delete(mail.expect("poison"));
    }

    private static void fifo(Client fifo) {
        for (String body : List.of("a1", "a2", "a1")) {
            fifo.sqs.sendMessage(one -> one.queueUrl(fifo.url).messageBody(body).messageGroupId("a"));
        }
        List<Message> messages = fifo.receive(20);
        check(List.of("a1", "a2"), messages.stream().map(Message::body).toList());
        messages.forEach(fifo::delete);
    }

    private List<Message> receive(int seconds) {
        return sqs.receiveMessage(one -> one.queueUrl(url).waitTimeSeconds(seconds).maxNumberOfMessages(10)
            .messageAttributeNames("All")).messages();
    }

    private Message expect(String body) {
        List<Message> found = receive(20);
        check(List.of(body), found.stream().map(Message::body).toList());
        return found.get(0);
    }

    private void extend(Message message, int seconds) {
        sqs.changeMessageVisibility(one ->
            one.queueUrl(url).receiptHandle(message.receiptHandle()).visibilityTimeout(seconds));
    }

    private void delete(Message message) {
        sqs.deleteMessage(one -> one.queueUrl(url).receiptHandle(message.receiptHandle()));
    }

    private static void check(Object wanted, Object found) {
        if (!wanted.equals(found)) {
            throw new AssertionError("expected " + wanted + ", got " + found);
        }
    }
}
