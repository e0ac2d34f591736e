package falsify

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Machine is what checks may need of the machine that they run on.
type Machine struct {
	Devices      []string // names of the usable CUDA devices
	Integrated   bool     // one of them is an integrated one
	MemAvailable uint64   // bytes
	Models       string   // folder of models that are not part of the source tree, may be empty
}

// lacks returns the needs that the machine does not meet.
func (m Machine) lacks(needs []string) (absent []string) {
	for _, text := range needs {
		need, err := ParseNeed(text)
		if err != nil || !m.has(need) {
			absent = append(absent, text)
		}
	}
	return absent
}

// Hardware reports whether one of the needs is hardware: a GPU or memory. Programs and models can be installed.
func Hardware(needs []string) bool {
	return slices.ContainsFunc(needs, func(text string) bool {
		need, err := ParseNeed(text)
		return err == nil && (need.Kind == "cuda" || need.Kind == "cuda-integrated" || need.Kind == "mem")
	})
}

// has reports whether the machine meets a need.
func (m Machine) has(n Need) bool {
	switch n.Kind {
	case "cuda":
		return len(m.Devices) > 0
	case "cuda-integrated":
		return m.Integrated
	case "mem":
		return m.MemAvailable >= n.Bytes
	case "model":
		if m.Models == "" {
			return false
		}
		_, err := os.Stat(filepath.Join(m.Models, n.Name))
		return err == nil
	case "program":
		_, err := exec.LookPath(n.Name)
		return err == nil
	}
	return false
}
