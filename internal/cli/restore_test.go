package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"apr/internal/fault"
)

// Settings that went through JSON come back with their values and origins; defaults that could not be given stay.
func TestRestore(t *testing.T) {
	type options struct {
		name  string
		steps int
		rate  float64
		seed  int64
		on    bool
		list  []string
		kind  string
	}
	table := func(o *options) []Option {
		return []Option{
			{Name: "name", Value: String(&o.name, "")}, {Name: "max-steps", Value: Int(&o.steps, 0).AtLeast(1)}, {Name: "rate", Value: Float(&o.rate, 1e-3).Above(0)},
			{Name: "seed", Value: Int64(&o.seed, 42)}, {Name: "on", Value: Bool(&o.on, true)}, {Name: "data", Value: Strings(&o.list)},
			{Name: "kind", Value: Enum(&o.kind, "a", "a", "b")},
		}
	}
	restore := func(o *options, text string) (Settings, error) {
		var was map[string]Setting
		if err := json.Unmarshal([]byte(text), &was); err != nil {
			t.Fatal(err)
		}
		return Restore(table(o), was)
	}
	var got options
	s, err := restore(&got, `{"name":{"value":"x y","origin":"flag"},"max_steps":{"value":0,"origin":"default"},"rate":{"value":2.5e-7,"origin":"config f:1"},
		"seed":{"value":299792458,"origin":"flag"},"on":{"value":false,"origin":"flag"},"data":{"value":["a","b,c"],"origin":"flag"},"kind":{"value":"b","origin":"env K"}}`)
	if err != nil {
		t.Fatal(err)
	}
	if want := (options{"x y", 0, 2.5e-7, 299792458, false, []string{"a", "b,c"}, "b"}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if s.Origin("rate") != "config f:1" || s.Given("max-steps") || !s.Given("kind") {
		t.Errorf("origins %+v", s)
	}
	for text, want := range map[string]string{
		`{"raet":{"value":"x"}}`: "raet is none", `{"kind":{"value":"c"}}`: "kind", `{"seed":{"value":1.5}}`: "seed", `{"rate":{"value":["1","2"]}}`: "2 values",
	} {
		if _, err := restore(new(options), text); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
