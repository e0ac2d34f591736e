package runlog

import (
	"runtime"
	"testing"
	"time"
)

// TestRestarting: between the death of a supervised process and its next start the run is at work, as long as its
// supervisor lives.
func TestRestarting(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // when a process started is not known there
	}
	self := ThisProcess()
	gone := self
	gone.Started += "0"
	for name, tt := range map[string]struct {
		detail any
		want   string
	}{
		"it starts it again":     {map[string]any{"started_again": true, "supervisor": self}, Running},
		"it gives up":            {map[string]any{"started_again": false, "supervisor": self}, Failed},
		"it is gone too":         {map[string]any{"started_again": true, "supervisor": gone}, Failed},
		"of an earlier version":  {map[string]any{"started_again": true}, Failed},
		"nothing was written so": {nil, Failed},
	} {
		r := &Record{Events: []Event{{Time: time.Unix(1, 0), Kind: "death", Name: "killed", Detail: tt.detail}}}
		if r.judge(false); r.Status != tt.want {
			t.Errorf("%s: %s, want %s", name, r.Status, tt.want)
		}
	}
}
