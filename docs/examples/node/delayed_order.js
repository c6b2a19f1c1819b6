// Schedules a record. kafkajs 2 chooses the partition by murmur2 of the key, as Java does.
const { Kafka, Partitioners } = require("kafkajs");

async function main(bootstrap) {
  const kafka = new Kafka({ brokers: [bootstrap] });
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  await producer.connect();
  const headers = { "delay-after": "PT3S", "delay-target-topic": "orders", "delay-id": "order-17" };
  const messages = [{ key: "order-17", value: "pay now", headers }];
  await producer.send({ topic: "delay_topic_any", messages });
  await producer.disconnect();
}

main(process.argv[2]);
