package kernel

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
)

//go:generate sh -c "cd ../../.. && go run ./tools/ptx/main.go"

//go:embed ptx
var files embed.FS

// Module is a compiled .cu file.
type Module struct {
	Name    string   `json:"name"`
	Target  string   `json:"target"` // sm_80: for that and all later devices; sm_90a: for compute capability 9.0 alone
	Flags   string   `json:"flags"`
	Source  string   `json:"source_sha256"`
	PTXHash string   `json:"ptx_sha256"`
	Kernels []string `json:"kernels"` // entry points
}

// manifest is ptx/manifest.json.
type manifest struct {
	Compiler string   `json:"compiler"`
	Headers  string   `json:"headers_sha256"` // of all .cuh files, in order of name
	Modules  []Module `json:"modules"`
}

var readManifest = sync.OnceValue(func() (m manifest) {
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

// PTX returns the text of a module. A module that does not exist is a broken precondition.
func PTX(module string) []byte {
	text, err := files.ReadFile("ptx/" + module + ".ptx")
	if err != nil {
		panic("kernel: no module " + module)
	}
	return text
}
