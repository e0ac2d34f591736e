package kernel

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

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
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(fmt.Sprintf("kernel: %v", err)) // of the options
	}
	defer z.Close()
	text, err := z.DecodeAll(packed, nil)
	if err != nil {
		panic(fmt.Sprintf("kernel: the embedded PTX of %s: %v", module, err))
	}
	return text
}
