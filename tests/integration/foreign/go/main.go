// Writes a record for each line of standard input: its key, then names and values of its headers.
package main

import (
	"bufio"
	"context"
	"log"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.DefaultProduceTopic(os.Args[2]))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	var records []*kgo.Record
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		record := kgo.KeyStringRecord(fields[0], "go")
		for at := 1; at < len(fields); at += 2 {
			header := kgo.RecordHeader{Key: fields[at], Value: []byte(fields[at+1])}
			record.Headers = append(record.Headers, header)
		}
		records = append(records, record)
	}
	if err := client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		log.Fatal(err)
	}
}
