package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	all := []record{
		{Type: "unquantised", Bytes: 2e6, Nats: 2},
		{Type: "q4_0", How: weighted, Bytes: 1e6, KL: .2, Nats: 2.2},
		{Type: "q4_0", How: plain, Bytes: 1e6, KL: .3, Nats: 2.3},
		{Type: "q4_0", How: distilled, Seed: 1, Rate: "3e-5", Bytes: 1e6, KL: .2, Nats: 2.4, Tokens: 1e6, Seconds: 60},
		{Type: "q4_0", How: distilled, Seed: 1, Rate: "6e-5:0@2", Bytes: 1e6, KL: .1, Nats: 2.1, Tokens: 1e6, Seconds: 60},
		{Type: "q4_0", How: distilled, Seed: 1, Rate: "1e-3", Diverged: true},
		{Type: "q2_k", How: distilled, Seed: 1, Rate: "3e-5", Bytes: 1e6, KL: .5, Nats: 2.5, Tokens: 1e6, Seconds: 60},
		{Type: "q4_0", How: distilled, Seed: 2, Rate: "6e-5:0@2", Bytes: 1e6, KL: .3, Nats: 2.3, Tokens: 1e6, Seconds: 60},
	}
	got := markdown(settings{Model: "m", Machine: "x", Backend: "cpu", Steps: 1, Rows: 2, Length: 3, Jobs: 4}, all)
	want := `| unquantised |  |  |  | 2.00 | 0.0000 | 2.0000 | 0.0 % |  | 0.0 |
| q4_0 | plain |  |  | 1.00 | 0.3000 | 2.3000 | 0.0 % |  | 0.0 |
| q4_0 | weighted |  |  | 1.00 | 0.2000 | 2.2000 | 0.0 % |  | 0.0 |
` + "| q4_0 | distilled | 6e-5 to 0 of it, 2 rows | 2 | 1.00 | 0.2000 ± 0.1000 | 2.2000 ± 0.1000 | 0.0 ± 0.0 % " +
		"| 1.00M | 1.0 ± 0.0 |" + `
| q2_k | distilled | 3e-5 | 1 | 1.00 | 0.5000 | 2.5000 | 0.0 % | 1.00M | 1.0 |

Rates that were tried:

| type | rate | seed | KL | nats/token |
|---|---|--:|--:|--:|
| q4_0 | 3e-5 | 1 | 0.2000 | 2.4000 |
| q4_0 | 6e-5 to 0 of it, 2 rows | 1 | 0.1000 | 2.1000 |
| q4_0 | 1e-3 | 1 | diverged | |
| q4_0 | 6e-5 to 0 of it, 2 rows | 2 | 0.3000 | 2.3000 |
| q2_k | 3e-5 | 1 | 0.5000 | 2.5000 |
`
	if !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s", got)
	}
}

// TestLists: a rate is a number, or one with the fraction at which it ends.
func TestLists(t *testing.T) {
	for rates, good := range map[string]bool{"": true, "3e-5": true, "3e-5,1e-4:0": true, "1e-4:.1": true, "1e-4@2": true,
		"1e-4:0@2": true,
		"0":        false, "x": false, "1e-4:2": false, "1e-4:": false, "1e-4@0": false, "1e-4@x": false, "@2": false} {
		if err := new(options).lists("q4_0", "1,2", rates); (err == nil) != good {
			t.Errorf("-rates %s: %v", rates, err)
		}
	}
	if err := new(options).lists("q4_0", "1,x", ""); err == nil {
		t.Error("x is a seed")
	}
}
