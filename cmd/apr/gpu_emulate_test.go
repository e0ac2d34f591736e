//go:build emulate

package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"apr/device/cuda/emulator"
)

// TestEmulatedScripts runs the scripts of testdata/emulate, in which the CUDA driver is the emulator. $DRIVER is its
// folder.
func TestEmulatedScripts(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "emulate"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("APR_CUDA_LIB_DIR", dir)
			e.Setenv("DRIVER", dir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "json": jsonMember},
	})
}
