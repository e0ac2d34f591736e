package selfcheck_test

import (
	"context"
	"fmt"
	"os"

	"apr/device/cpu"
	"apr/selfcheck"
)

// The CPU is checked against its own portable code.
func ExampleRun() {
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	other, err := cpu.New(cpu.Options{ISA: "generic"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer other.Close()
	dir, err := os.MkdirTemp("", "check")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	stages, err := selfcheck.Run(context.Background(), selfcheck.Options{Device: dev, Other: other, OtherName: "portable code", Dir: dir})
	for _, s := range stages[:3] {
		fmt.Println(s.Name, s.OK, err)
	}
	// Output:
	// load true <nil>
	// tokenise true <nil>
	// forward true <nil>
}
