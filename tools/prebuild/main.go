// Prebuild builds the test programs of contracts for a machine with a GPU and without a Go toolchain, those of the tree as it
// is and those of each mutant, where apr contract falsify --prebuilt runs them. Run it in the root of the module:
//
//	go run ./tools/prebuild/main.go -o bin/gpu/contracts
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"apr/falsify"
	"apr/internal/fault"
)

func main() {
	out := flag.String("o", "", "folder for the programs and their list; what it holds is removed")
	dir := flag.String("dir", "contracts", "folder of the contracts")
	emulate := flag.Bool("emulate", false, "build for the emulator, to rehearse a run on a GPU")
	flag.Parse()
	if *out == "" {
		fmt.Fprintln(os.Stderr, "prebuild: -o is missing")
		os.Exit(2)
	}
	if err := build(*out, *dir, *emulate); err != nil {
		fmt.Fprintln(os.Stderr, "prebuild:", err)
		os.Exit(fault.ExitCode(err))
	}
}

func build(out, dir string, emulate bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	files, err := falsify.Files(dir)
	if err != nil {
		return err
	}
	if err := clear(out); err != nil {
		return err
	}
	p, err := falsify.Prebuild(ctx, files, out, emulate, func(file string) { fmt.Println(file) })
	if err != nil {
		return err
	}
	fmt.Printf("%d programs\n", len(p.Programs))
	return nil
}

// clear removes the programs of an earlier build, whose list is there.
func clear(out string) error {
	if _, err := os.Stat(out + "/prebuilt.json"); err != nil {
		return nil // Prebuild refuses a folder that holds something else
	}
	return os.RemoveAll(out)
}
