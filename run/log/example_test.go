package runlog_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	runlog "apr/run/log"
)

// A run of one step. The loss was not finite: JSON has no number for it.
func Example() {
	dir, err := os.MkdirTemp("", "runlog")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	run, err := runlog.Open(filepath.Join(dir, "run"), false, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, err := range []error{
		run.WriteManifest(runlog.Manifest{RunID: "example"}),
		run.Event("decision", "teacher", "resident", "it fits"),
		run.Step(runlog.Step{Leg: "student", Loss: runlog.Number(math.NaN())}),
		run.WriteReceipt(runlog.Receipt{RunID: "example", Status: "completed"}),
		run.Close(),
	} {
		if err != nil {
			fmt.Println(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(run.Path, "*.json*"))
	for _, f := range files {
		fmt.Println(filepath.Base(f))
	}
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// events.jsonl
	// manifest.json
	// receipt.json
	// steps.jsonl
}
