//go:build !linux && !darwin

package corpus

import "errors"

// limitMemory refuses: this system has no such limit, and without it no Parquet file is read.
func limitMemory(uint64) error { return errors.New("Parquet is read on Linux and macOS only") }
