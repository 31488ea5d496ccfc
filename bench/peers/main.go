// Peers that the benchmarks run beside Moorline, one subcommand each. A subcommand prints one JSON object.
package main

import (
	"encoding/json"
	"log"
	"os"
)

var peers = map[string]func(arguments []string) any{
	"graph": graphPeer,
	"queue": queuePeer,
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: peers PEER [ARGUMENT ...]")
	}
	peer, known := peers[os.Args[1]]
	if !known {
		log.Fatalf("no peer named %q", os.Args[1])
	}
	if err := json.NewEncoder(os.Stdout).Encode(peer(os.Args[2:])); err != nil {
		log.Fatal(err)
	}
}
