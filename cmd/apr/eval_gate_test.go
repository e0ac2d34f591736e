package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// A gate is passed by a model alone: a threshold that canaries meet too is void, whatever the model scores.
func TestGateVoid(t *testing.T) {
	for _, tt := range []struct {
		threshold string
		exit      int
		message   string
	}{
		{"25", 0, ""},
		{"5000", 5, "the gate is void: 5000 lets canaries pass: zeroed (4096)"},
		{"1.5", 5, "is above the threshold 1.5"},
	} {
		contracttest.Cases(t, 1)
		code, v := call(t, "eval", "../../testdata/models/gosrc", "--data", "../../examples/gosrc/data/gosrc-val.jsonl.zst", "--max-tokens", "256", "--seq-len", "128", "--threshold", tt.threshold)
		message := ""
		if e, ok := v["error"].(map[string]any); ok {
			message = fmt.Sprint(e["message"])
		}
		if code != tt.exit || v["passed"] != (tt.exit == 0) || !strings.Contains(message, tt.message) || (message == "") != (tt.message == "") {
			t.Errorf("threshold %s: exit %d, passed %v, %q; want exit %d and %q", tt.threshold, code, v["passed"], message, tt.exit, tt.message)
		}
		if n := len(v["canaries"].([]any)); n != 6 {
			t.Errorf("threshold %s: %d canaries", tt.threshold, n)
		}
	}
}

type lostDevice struct{ error }

func (lostDevice) DeviceLost() bool { return true }

// A device that is lost is no canary that failed: the error of a lost one is told from a model's own.
func TestDeviceLost(t *testing.T) {
	model := fault.New(fault.Inference, "the loss is not finite")
	lost := fault.New(fault.Inference, "the device was lost").Because(lostDevice{errors.New("CUDA_ERROR_ILLEGAL_ADDRESS")})
	if deviceLost(model) || !deviceLost(lost) || !deviceLost(fmt.Errorf("canary: %w", lost)) {
		t.Errorf("model %v, lost %v", deviceLost(model), deviceLost(lost))
	}
}
