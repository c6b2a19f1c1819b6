// Writes a record for each line of standard input: its key, then names and values of its headers.
const { readFileSync } = require("node:fs");
const { Kafka } = require("kafkajs");

const [bootstrap, topic] = process.argv.slice(2);

function message(line) {
  const [key, ...fields] = line.split("\t");
  const headers = {};
  for (let at = 0; at < fields.length; at += 2) headers[fields[at]] = fields[at + 1];
  return { key, value: "node", headers };
}

async function main() {
  const messages = readFileSync(0, "utf8").trimEnd().split("\n").map(message);
  const producer = new Kafka({ brokers: [bootstrap] }).producer();
  await producer.connect();
  await producer.send({ topic, messages });
  await producer.disconnect();
}

main();
