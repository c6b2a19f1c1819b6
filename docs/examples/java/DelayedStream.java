import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;

/** A Kafka Streams application that schedules each record of a topic. */
public class DelayedStream {
    static class Delay extends ContextualFixedKeyProcessor<String, String, String> {
        @Override
        public void process(FixedKeyRecord<String, String> record) {
            Map.of("delay-after", "PT3S", "delay-target-topic", "orders", "delay-id", record.key())
                .forEach((name, value) ->
                    record.headers().add(name, value.getBytes(StandardCharsets.UTF_8)));
            context().forward(record);
        }
    }

    public static void main(String[] args) throws Exception {
        var config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("application.id", "delayed-stream");
        config.put("auto.offset.reset", "earliest");
        config.put("processing.guarantee", "exactly_once_v2");
        config.put("default.key.serde", Serdes.StringSerde.class);
        config.put("default.value.serde", Serdes.StringSerde.class);
        var builder = new StreamsBuilder();
        builder.<String, String>stream("payments").processValues(Delay::new).to("delay_topic_any");
        var streams = new KafkaStreams(builder.build(), config);
        var stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close();
            stopped.countDown();
        }));
        streams.start();
        stopped.await();
    }
}
