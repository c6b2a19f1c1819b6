import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends orders that fail back: they come again after 10 seconds, a minute and ten minutes. */
public class RetriedOrders {
    private static final Map<String, String> RETRY =
        Map.of("delay-backoff", "10s,1m,10m", "delay-target-topic", "orders");

    public static void main(String[] args) throws Exception {
        Map<String, Object> reading = Map.of(
            "bootstrap.servers", args[0], "group.id", "shipping", "auto.offset.reset", "earliest",
            "enable.auto.commit", false, "isolation.level", "read_committed");
        Map<String, Object> writing = Map.of("bootstrap.servers", args[0]);
        var read = new ByteArrayDeserializer();
        var write = new ByteArraySerializer();
        try (var consumer = new KafkaConsumer<>(reading, read, read);
             var producer = new KafkaProducer<>(writing, write, write)) {
            consumer.subscribe(List.of("orders"));
            while (true) {
                for (var order : consumer.poll(Duration.ofSeconds(1))) {
                    try {
                        ship(order);
                    } catch (IllegalStateException failure) {
                        producer.send(sentBack(order)).get();
                    }
                }
                consumer.commitSync();
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> sentBack(ConsumerRecord<byte[], byte[]> order) {
        var back = new ProducerRecord<>(
            "delay_topic_any", null, order.key(), order.value(), order.headers());
        back.headers().remove("delay-id"); // else a newer record of the id is replaced
        if (back.headers().lastHeader("delay-backoff") == null) {
            RETRY.forEach((name, value) ->
                back.headers().add(name, value.getBytes(StandardCharsets.UTF_8)));
        }
        return back;
    }

    private static void ship(ConsumerRecord<byte[], byte[]> order) {
        throw new IllegalStateException("out of stock");
    }
}
