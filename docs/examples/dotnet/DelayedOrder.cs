// Schedules a record with Confluent.Kafka, which wraps librdkafka: its own partitioner is not Java's, so
// it is named. Not run by a test.
using System.Text;
using Confluent.Kafka;

var config = new ProducerConfig { BootstrapServers = args[0], Partitioner = Partitioner.Murmur2Random };
using var producer = new ProducerBuilder<string, string>(config).Build();
var headers = new Headers
{
    { "delay-after", Encoding.UTF8.GetBytes("PT3S") },
    { "delay-target-topic", Encoding.UTF8.GetBytes("orders") },
    { "delay-id", Encoding.UTF8.GetBytes("order-17") },
};
var message = new Message<string, string> { Key = "order-17", Value = "pay now", Headers = headers };
await producer.ProduceAsync("delay_topic_any", message);
