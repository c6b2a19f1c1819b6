// Sends orders that fail back: they come again after 10 seconds, a minute and ten minutes.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

var retry = []kgo.RecordHeader{
	{Key: "delay-backoff", Value: []byte("10s,1m,10m")},
	{Key: "delay-target-topic", Value: []byte("orders")},
}

func main() {
	ctx := context.Background()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ConsumerGroup("shipping"),
		kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for {
		for _, order := range client.PollFetches(ctx).Records() {
			if ship(order) == nil {
				continue
			}
			if err := client.ProduceSync(ctx, sentBack(order)).FirstErr(); err != nil {
				log.Fatal(err)
			}
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			log.Fatal(err)
		}
	}
}

func sentBack(order *kgo.Record) *kgo.Record {
	// With its id it would replace a newer record of the id.
	headers := slices.DeleteFunc(slices.Clone(order.Headers), func(h kgo.RecordHeader) bool { return h.Key == "delay-id" })
	if !slices.ContainsFunc(headers, func(h kgo.RecordHeader) bool { return h.Key == "delay-backoff" }) {
		headers = append(headers, retry...)
	}
	return &kgo.Record{Topic: "delay_topic_any", Key: order.Key, Value: order.Value, Headers: headers}
}

func ship(order *kgo.Record) error {
	return errors.New("out of stock")
}
