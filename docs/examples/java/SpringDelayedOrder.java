import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;

/** Schedules a record by Spring's template. A ProducerRecord passes no header mapper, so that the
 * service gets the bytes as they are; the mapper of a Message may write them as JSON. */
public class SpringDelayedOrder {
    public static void main(String[] args) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", args[0]);
        var text = new StringSerializer();
        var factory = new DefaultKafkaProducerFactory<String, String>(config, text, text);
        var template = new KafkaTemplate<String, String>(factory);
        var record = new ProducerRecord<>("delay_topic_any", "order-17", "pay now");
        Map.of("delay-after", "PT3S", "delay-target-topic", "orders", "delay-id", "order-17")
            .forEach((name, value) ->
                record.headers().add(name, value.getBytes(StandardCharsets.UTF_8)));
        template.send(record).get();
        factory.destroy();
    }
}
