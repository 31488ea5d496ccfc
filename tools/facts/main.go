// Command facts writes down what Kubernetes' published Go API modules say about the built-in kinds and what no
// schema carries: protobuf field numbers, list types, merge keys, defaults. See README.md.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "facts:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("usage: facts table|bodies FILE")
	}
	var write func() ([]byte, error)
	switch arguments[0] {
	case "table":
		write = table
	case "bodies":
		write = bodies
	default:
		return fmt.Errorf("unknown command %q", arguments[0])
	}
	content, err := write()
	if err != nil {
		return err
	}
	return os.WriteFile(arguments[1], content, 0o644)
}
