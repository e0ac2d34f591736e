package sandbox_test

import (
	"context"
	"fmt"

	"apr/eval/sandbox"
)

// A program gets an input, and no network.
func ExampleOpen() {
	ctx := context.Background()
	box, err := sandbox.Open(ctx, sandbox.DefaultLimits, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := box.Run(ctx, sandbox.Program{Argv: []string{"/bin/cat"}, Input: "hello", Read: []string{"/usr/bin", "/usr/lib"}})
	fmt.Println(r.Exit, r.Stdout, err)
	fmt.Println(box.Limits()[4])
	// Output:
	// 0 hello <nil>
	// no network
}
