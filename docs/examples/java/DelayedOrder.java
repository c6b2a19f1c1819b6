import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Schedules a record. Java's producer chooses the partition by murmur2 of the key, as is wanted. */
public class DelayedOrder {
    public static void main(String[] args) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", args[0]);
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<String, String>(config, text, text)) {
            var record = new ProducerRecord<>("delay_topic_any", "order-17", "pay now");
            Map.of("delay-after", "PT3S", "delay-target-topic", "orders", "delay-id", "order-17")
                .forEach((name, value) ->
                    record.headers().add(name, value.getBytes(StandardCharsets.UTF_8)));
            producer.send(record).get();
        }
    }
}
