// Sends orders that fail back: they come again after 10 seconds, a minute and ten minutes.
const { Kafka, Partitioners } = require("kafkajs");

const RETRY = { "delay-backoff": "10s,1m,10m", "delay-target-topic": "orders" };

async function main(bootstrap) {
  const kafka = new Kafka({ brokers: [bootstrap] });
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  const consumer = kafka.consumer({ groupId: "shipping" });
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topics: ["orders"], fromBeginning: true });
  const eachMessage = async ({ message }) => {
    const { key, value } = message;
    try {
      await ship(message);
    } catch {
      const headers = { ...RETRY, ...message.headers };
      delete headers["delay-id"]; // else a newer record of the id is replaced
      const messages = [{ key, value, headers }];
      await producer.send({ topic: "delay_topic_any", messages });
    }
  };
  await consumer.run({ eachMessage }); // its offset is committed after it
}

async function ship(order) {
  throw new Error("out of stock");
}

main(process.argv[2]);
