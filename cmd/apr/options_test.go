package main

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"apr/internal/cli"
)

var update = flag.Bool("update", false, "rewrite schema/*.json")

// TestSchemaIsCurrent keeps schema/distill.json what the option table makes; go test ./cmd/apr -update rewrites it.
func TestSchemaIsCurrent(t *testing.T) {
	const file = "../../schema/distill.json"
	var o distillOptions
	c := &cli.Command{Name: "distill", Options: o.table(), Nested: distillNested}
	want := cli.Schema(c, "distill.json")
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the option table says; run go test ./cmd/apr -run Schema -update", file)
	}
}
