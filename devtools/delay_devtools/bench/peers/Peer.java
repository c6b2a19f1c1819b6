import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Client of RocketMQ for the bench "peers", started as {@code java Peer MODE SERVERS TOPIC}.
 *
 * <p>{@code load} sends a message for each line "due-ms key value-in-hex" of standard input, and
 * prints "acked", or "again" with the reason when it has to send one again. {@code judge} prints
 * "key value-in-hex" for each message. It keeps its own position, so that a message which arrives
 * twice was stored twice. Both print "ready" first.
 */
public final class Peer {
    private static final int QUEUES = 4;
    private static final int AGAIN_MS = 200;
    private static final int TRIES = 100;
    private static final int ROUTES_MS = 1_000;
    private static final PrintStream OUT = System.out;
    private static final ScheduledExecutorService LATER = Executors.newScheduledThreadPool(1);

    public static void main(String[] words) {
        System.setOut(System.err); // Loggers write there.
        try {
            if (words[0].equals("load")) {
                load(words[1], words[2]);
            } else {
                judge(words[1], words[2]);
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            System.exit(1); // The client's threads would go on.
        }
    }

    private static void say(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static void load(String servers, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load");
        producer.setNamesrvAddr(servers);
        producer.setRetryTimesWhenSendAsyncFailed(0); // They are counted here.
        producer.setPollNameServerInterval(ROUTES_MS);
        producer.start();
        answered(() -> producer.createTopic(producer.getCreateTopicKey(), topic, QUEUES, Map.of()));
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            Message message = new Message(topic, "", words[1], HexFormat.of().parseHex(words[2]));
            message.setDeliverTimeMs(Long.parseLong(words[0]));
            send(producer, message);
        }
        System.exit(0);
    }

    private interface Request {
        void send() throws Exception;
    }

    /**
     * Asks until it is answered. A broker that has just started is not yet known to the name
     * server, and of two first requests at once one may fail (apache/rocketmq#1108).
     */
    private static void answered(Request request) throws Exception {
        for (int left = TRIES; ; left--) {
            try {
                request.send();
                return;
            } catch (MQClientException failure) {
                if (left == 0) {
                    throw failure;
                }
                Thread.sleep(AGAIN_MS);
            }
        }
    }

    private static void send(DefaultMQProducer producer, Message message) {
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        say("acked");
                    } else {
                        again(producer, message, result.getSendStatus().toString());
                    }
                }

                @Override
                public void onException(Throwable failure) {
                    again(producer, message, failure.toString());
                }
            });
        } catch (Exception failure) {
            again(producer, message, failure.toString());
        }
    }

    private static void again(DefaultMQProducer producer, Message message, String why) {
        say("again " + why.replace('\n', ' '));
        LATER.schedule(() -> send(producer, message), AGAIN_MS, TimeUnit.MILLISECONDS);
    }

    private static void judge(String servers, String topic) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("judge");
        consumer.setNamesrvAddr(servers);
        consumer.setPollNameServerInterval(ROUTES_MS);
        consumer.setAutoCommit(false);
        // Until a first request is answered, the client knows no position, nor keeps one that was
        // sought. After a kill it then begins here: by default it finds a queue empty, asks for its
        // end, and skips what came between these requests.
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        answered(() -> consumer.assign(consumer.fetchMessageQueues(topic)));
        say("ready");
        while (true) {
            for (MessageExt message : consumer.poll(ROUTES_MS)) {
                say(message.getKeys() + " " + HexFormat.of().formatHex(message.getBody()));
            }
        }
    }
}
