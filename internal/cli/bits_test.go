package cli

import (
	"maps"
	"slices"
	"testing"
)

// Deciding takes the merged values of the options that decide bits by value, and no others.
func TestDeciding(t *testing.T) {
	var seed int
	var words []string
	var rest string
	opts := []Option{
		{Name: "seed", Bits: BitsByValue, Value: Int(&seed, 42)}, {Name: "lora-targets", Bits: BitsByValue, Value: Words(&words, []string{"q"}, "q", "k")},
		{Name: "teacher", Bits: BitsByEffect, Value: String(&rest, "")}, {Name: "output", Bits: SameBits, Value: String(&rest, "")}, {Name: "unsaid", Value: String(&rest, "")},
	}
	opts[0].given = []string{"7"}
	s, err := merge(opts, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := Deciding(opts, s)
	if got := slices.Sorted(maps.Keys(m)); !slices.Equal(got, []string{"lora_targets", "seed"}) || m["seed"] != 7 {
		t.Errorf("%v", m)
	}
}
