package main

import (
	"testing"

	"apr/device/cuda"
)

// TestActivity: what is not known is left out, and nothing known is nothing shown.
func TestActivity(t *testing.T) {
	percent, bytes, watts := 97, int64(28_100_000_000), 612.4
	for _, c := range []struct {
		name string
		a    cuda.Activity
		want string
	}{
		{"all", cuda.Activity{Utilisation: &percent, Memory: &bytes, Power: &watts}, "  GPU 97 % 28.1 GB 612 W"},
		{"no memory of its own", cuda.Activity{Utilisation: &percent, Power: &watts}, "  GPU 97 % 612 W"},
		{"power alone", cuda.Activity{Power: &watts}, "  GPU 612 W"},
		{"nothing", cuda.Activity{}, ""},
	} {
		if got := activity(c.a); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
