package main

import (
	"slices"
	"strings"
)

// verdict says in a sentence what this machine can do now, and what keeps it from more.
func (r *doctorResult) verdict() string {
	gpu, cpu := r.backend("cuda"), r.backend("cpu")
	portable := !gpu.Usable && r.backend("vulkan").Usable
	if portable {
		gpu = r.backend("vulkan")
	}
	var text string
	switch {
	case gpu.Usable && cpu.Usable:
		text = "This machine trains and runs models on its GPU (" + *gpu.Device + ") and on the CPU"
		if portable {
			text += "; --backend auto takes the faster of both"
		} else if !r.found("libcublasLt") {
			text += "; without cuBLAS the GPU is slower than it could be"
		}
	case gpu.Usable:
		text = "This machine trains and runs models on its GPU (" + *gpu.Device + "); the CPU cannot be used: " + *cpu.Reason
	case cpu.Usable:
		text = "This machine trains and runs models on the CPU (" + *cpu.Device + "), not on a GPU: " + *gpu.Reason
	default:
		text = "This machine can neither train nor run models: " + strings.TrimSuffix(*cpu.Reason, ".") + "; " + *gpu.Reason
	}
	if disk := r.check("disk"); disk.Status == checkFailed {
		text += "; a run has no place to write to: " + disk.Detail
	}
	return strings.TrimSuffix(text, ".") + "."
}

// backend returns what was found about a backend.
func (r *doctorResult) backend(name string) doctorBackend {
	if i := slices.IndexFunc(r.Backends, func(b doctorBackend) bool { return b.Name == name }); i >= 0 {
		return r.Backends[i]
	}
	reason := "it was not looked at"
	return doctorBackend{Name: name, Reason: &reason}
}

// check returns the result of a check.
func (r *doctorResult) check(id string) doctorCheck {
	if i := slices.IndexFunc(r.Checks, func(c doctorCheck) bool { return c.ID == id }); i >= 0 {
		return r.Checks[i]
	}
	return doctorCheck{ID: id}
}
