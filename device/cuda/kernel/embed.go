package kernel

import (
	"embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"apr/device/cuda/kernel/manifest"
)

//go:generate sh -c "cd ../../.. && go run ./tools/ptx/main.go"

//go:embed ptx
var files embed.FS

// Module is a compiled .cu file.
type Module = manifest.Module

var readManifest = sync.OnceValue(func() (m manifest.Manifest) {
	text, err := files.ReadFile("ptx/manifest.json")
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		panic(fmt.Sprintf("kernel: embedded manifest: %v", err))
	}
	return m
})

// Modules returns all compiled modules in order of name.
func Modules() []Module { return slices.Clone(readManifest().Modules) }

// PTX returns the text of a module, decompressing it. A module that does not exist is a broken precondition.
func PTX(module string) []byte {
	packed, err := files.ReadFile("ptx/" + module + manifest.Extension)
	if err != nil {
		panic("kernel: no module " + module)
	}
	text, err := manifest.Unpack(packed)
	if err != nil {
		panic(fmt.Sprintf("kernel: the embedded PTX of %s: %v", module, err))
	}
	return text
}

// argument is an entry point with its one argument, a struct.
var argument = regexp.MustCompile(`\.entry (\w+)\(\s*\.param \.align \d+ \.b8 \w+\[(\d+)\]`)

// ArgBytes returns the size of the argument of each kernel of a module.
func ArgBytes(ptx []byte) map[string]int {
	sizes := map[string]int{}
	for _, m := range argument.FindAllSubmatch(ptx, -1) {
		sizes[string(m[1])], _ = strconv.Atoi(string(m[2])) // digits, by the expression
	}
	return sizes
}
