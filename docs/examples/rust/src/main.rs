use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::time::Duration;

/// Schedules a record. librdkafka's own partitioner is not Java's, so it is named.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let bootstrap = std::env::args().nth(1).expect("host:port of a broker");
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("partitioner", "murmur2_random")
        .create()
        .expect("a producer");
    let wanted = [("delay-after", "PT3S"), ("delay-target-topic", "orders"), ("delay-id", "order-17")];
    let headers = wanted.into_iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header { key, value: Some(value) })
    });
    let record = FutureRecord::to("delay_topic_any").key("order-17").payload("pay now").headers(headers);
    producer.send(record, Duration::from_secs(30)).await.expect("written");
}
