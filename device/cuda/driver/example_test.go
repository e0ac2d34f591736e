package driver_test

import (
	"fmt"
	"testing/fstest"

	"apr/device/cuda/driver"
)

// Where libcublasLt would be looked for on a machine with one toolkit and a driver that serves CUDA 12.8.
func Example() {
	machine := driver.System{
		Files:  fstest.MapFS{"usr/local/cuda-12.8/lib64/libcublasLt.so.12": &fstest.MapFile{}},
		Getenv: func(string) string { return "" },
		Arch:   "amd64",
	}
	for _, a := range machine.Search(driver.CublasLt, 12080)[:3] {
		fmt.Printf("%s: %q %q\n", a.Place, a.Path, a.Error)
	}
	// Output:
	// dynamic linker: "libcublasLt.so.12" ""
	// toolkit folder: "/usr/local/cuda-12.8/lib64/libcublasLt.so.12" ""
	// system folder: "/usr/lib/x86_64-linux-gnu/libcublasLt.so.12" "no such file"
}
