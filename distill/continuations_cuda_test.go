//go:build gpu || emulate

package distill

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"apr/device/cuda"
	runlog "apr/run/log"
)

// TestCUDAContinuations ends a run on a GPU with what the models write, beside what is in its memory by then.
func TestCUDAContinuations(t *testing.T) {
	openEmulator(t)
	d, err := cuda.Open(cuda.Options{Compute: cuda.BF16})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := tinyConfig(t)
	text := filepath.Join(t.TempDir(), "held.txt") // short: an emulated GPU is slow
	if err := os.WriteFile(text, []byte("func main() {\n\tfor i := range 10 {\n\t\tfmt.Println(i, i*i)\n\t}\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Steps, c.SeqLen, c.EvalData, c.Samples = 1, 16, []string{text}, 1
	r, err := Start(t.Context(), c, d, &quiet{}, func(*runlog.Manifest) {})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Execute(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := len(r.samples.Continuations); n != 1 || len(r.samples.Continuations[0].Answers) != 2 {
		t.Errorf("%+v", r.samples.Continuations)
	}
}
