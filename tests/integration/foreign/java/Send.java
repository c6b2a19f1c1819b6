import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes a record for each line of standard input: its key, then names and values of its headers. */
public class Send {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
        var text = new StringSerializer();
        var lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        var written = new ArrayList<Future<?>>();
        try (var producer = new KafkaProducer<>(settings, text, text)) {
            for (String line; (line = lines.readLine()) != null; ) {
                String[] fields = line.split("\t");
                var record = new ProducerRecord<>(arguments[1], fields[0], "java");
                for (int at = 1; at < fields.length; at += 2)
                    record.headers().add(fields[at], fields[at + 1].getBytes("UTF-8"));
                written.add(producer.send(record));
            }
            for (Future<?> one : written) one.get();
        }
    }
}
