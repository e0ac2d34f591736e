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
		{Type: "q4_0", How: distilled, Seed: 1, Bytes: 1e6, KL: .1, Nats: 2.1, Top1: .5, Tokens: 1e6, Seconds: 60},
		{Type: "q2_k", How: distilled, Seed: 1, Bytes: 1e6, KL: .5, Nats: 2.5, Tokens: 1e6, Seconds: 60},
		{Type: "q4_0", How: distilled, Seed: 2, Bytes: 1e6, KL: .3, Nats: 2.3, Top1: .7, Tokens: 1e6, Seconds: 120},
	}
	got := markdown(settings{Model: "m", Machine: "x", Backend: "cpu", Steps: 1, Rows: 2, Length: 3, Jobs: 4}, all)
	want := `| unquantised |  |  | 2.00 | 0.0000 | 2.0000 | 0.0 % |  | 0.0 |
| q4_0 | plain |  | 1.00 | 0.3000 | 2.3000 | 0.0 % |  | 0.0 |
| q4_0 | weighted |  | 1.00 | 0.2000 | 2.2000 | 0.0 % |  | 0.0 |
| q4_0 | distilled | 2 | 1.00 | 0.2000 ± 0.1000 | 2.2000 ± 0.1000 | 60.0 ± 10.0 % | 1.00M | 1.5 ± 0.5 |
| q2_k | distilled | 1 | 1.00 | 0.5000 | 2.5000 | 0.0 % | 1.00M | 1.0 |
`
	if !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s", got)
	}
}
