package report_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	runlog "apr/run/log"
	"apr/run/report"
)

// The report of a run that was killed after its first step.
func Example() {
	dir, err := os.MkdirTemp("", "report")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "run")
	run, err := runlog.Open(path, false, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, err := range []error{
		run.WriteManifest(runlog.Manifest{RunID: "example"}),
		run.Step(runlog.Step{Leg: "student", Loss: 2.5, Finite: true}),
		run.Close(),
	} {
		if err != nil {
			fmt.Println(err)
		}
	}
	record, err := runlog.Read(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	var text strings.Builder
	if err := report.WriteMarkdown(&text, record); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.Join(strings.Split(text.String(), "\n")[:3], "\n"))
	// Output:
	// # The run failed
	//
	// ended without a receipt: it was killed, or its machine went down. Step 1 of the student: loss 2.5000.
}
