// Schedules a record. franz-go chooses the partition by murmur2 of the key, as Java does.
package main

import (
	"context"
	"log"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	record := &kgo.Record{
		Topic: "delay_topic_any",
		Key:   []byte("order-17"),
		Value: []byte("pay now"),
		Headers: []kgo.RecordHeader{
			{Key: "delay-after", Value: []byte("PT3S")},
			{Key: "delay-target-topic", Value: []byte("orders")},
			{Key: "delay-id", Value: []byte("order-17")},
		},
	}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		log.Fatal(err)
	}
}
