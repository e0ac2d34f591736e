package main

import (
	"bytes"

	"apr/internal/atomicfile"
	runlog "apr/run/log"
	"apr/run/report"
)

// compareFormats are what a comparison may be called.
var compareFormats = reportFormats[:1]

// writeComparison writes the page of several runs and returns its size.
func writeComparison(records []*runlog.Record, path string, chosen, force bool) (int, error) {
	if err := refuseIdle([]idle{{"metric", chosen, "with --output: the page shows all curves"}}); err != nil {
		return 0, err
	}
	if _, _, err := compareFormats.choose(path, "", "html"); err != nil {
		return 0, err
	}
	for _, r := range records {
		if err := keepRecord(r, path); err != nil {
			return 0, err
		}
	}
	var b bytes.Buffer
	if err := report.WriteComparison(&b, records); err != nil {
		return 0, err
	}
	return b.Len(), atomicfile.WriteFile(path, b.Bytes(), force)
}
