package generate

import (
	"context"
	"testing"
	"time"

	"apr/device"
	"apr/model"
)

// DraftClock makes a text whose rounds take the given times, with proposals and without.
func DraftClock(
	t *testing.T, with, without time.Duration, m, draft *model.Model, s device.Stream, prompt []int32, o Options,
) DraftStats {
	t.Helper()
	var now time.Duration
	calls := 0
	d := Draft{Model: draft, Tokens: 4, Trial: 8}
	d.clock = func() time.Duration { // a round asks twice
		if calls++; calls%2 == 0 {
			if calls/2 <= 9 {
				now += without
			} else {
				now += with
			}
		}
		return now
	}
	_, st, err := Speculate(context.Background(), m, s, prompt, o, d, nil)
	if err != nil {
		t.Fatal(err)
	}
	return st
}
