use rdkafka::config::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::time::Duration;

const RETRY: [(&str, &str); 2] = [("delay-backoff", "10s,1m,10m"), ("delay-target-topic", "orders")];

/// Sends orders that fail back: they come again after 10 seconds, a minute and ten minutes.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let bootstrap = std::env::args().nth(1).expect("host:port of a broker");
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    let producer: FutureProducer =
        config.clone().set("partitioner", "murmur2_random").create().expect("a producer");
    let consumer: StreamConsumer = config
        .set("group.id", "shipping")
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .create()
        .expect("a consumer");
    consumer.subscribe(&["orders"]).expect("subscribed");
    loop {
        let order = consumer.recv().await.expect("an order");
        if ship(&order).is_err() {
            let back = FutureRecord {
                topic: "delay_topic_any",
                partition: None,
                payload: order.payload(),
                key: order.key(),
                timestamp: None,
                headers: Some(headers_back(&order)),
            };
            producer.send(back, Duration::from_secs(30)).await.expect("written");
        }
        consumer.commit_message(&order, CommitMode::Sync).expect("committed");
    }
}

fn headers_back(order: &BorrowedMessage) -> OwnedHeaders {
    let all = order.headers().map(|own| own.detach()).unwrap_or_default();
    let headers = all
        .iter()
        .filter(|header| header.key != "delay-id") // else a newer record of the id is replaced
        .fold(OwnedHeaders::new(), |headers, header| headers.insert(header));
    if headers.iter().any(|header| header.key == "delay-backoff") {
        return headers;
    }
    RETRY.into_iter().fold(headers, |headers, (key, value)| {
        headers.insert(Header { key, value: Some(value) })
    })
}

fn ship(_order: &BorrowedMessage) -> Result<(), &'static str> {
    Err("out of stock")
}
