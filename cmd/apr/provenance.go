package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"apr/device/cpu"
	"apr/internal/cli"
	"apr/internal/readfile"
	runlog "apr/run/log"
)

// describeRun completes the manifest with what only the command knows.
func describeRun(m *runlog.Manifest, e *cli.Env, dev *opened) {
	m.Command, m.Folder = e.Command, workingFolder()
	m.Config = map[string]runlog.Value{}
	for key, s := range e.Settings.Map() {
		m.Config[key] = runlog.Value{Value: s.Value, Origin: s.Origin}
	}
	for _, path := range configFiles(e.Settings) {
		m.Inputs["config_file"] = hashed(path)
	}
	v := versionInfo()
	m.Version = codeOf(v)
	m.Version["modules"] = modules()
	m.Device = describeMachine(dev)
	m.Environment = environment(os.Environ())
}

// codeOf is what names the code of this program.
func codeOf(v versionResult) map[string]any {
	return map[string]any{"apr": v.Version, "git_sha": v.GitSHA, "dirty": v.Dirty, "go": v.GoVersion, "program": programIdentity()}
}

// configFiles are the files that settings came from: one, as the command line has it.
func configFiles(s cli.Settings) []string {
	var paths []string
	for _, v := range s {
		if rest, ok := strings.CutPrefix(v.Origin, "config "); ok {
			if i := strings.LastIndexByte(rest, ':'); i > 0 && !slices.Contains(paths, rest[:i]) {
				paths = append(paths, rest[:i])
			}
		}
	}
	return paths
}

// hashed is the record of a small file that was read; if it is gone by now, the record says so.
func hashed(path string) runlog.Input {
	text, err := readfile.String(path, 16<<20)
	if err != nil {
		return runlog.Input{Path: path, Detail: err.Error()}
	}
	return runlog.Input{Path: path, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(text))), Of: "the configuration file", Bytes: int64(len(text))}
}

// modules are the libraries that are built in, with their versions.
func modules() map[string]string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	m := map[string]string{}
	for _, d := range info.Deps {
		m[d.Path] = d.Version
	}
	return m
}

// describeMachine says what the run computes on: the device, the processor beside it, the system.
func describeMachine(dev *opened) map[string]any {
	info := dev.Info()
	host, _ := os.Hostname() // an unnamed host is no reason to fail
	m := map[string]any{
		"kind": info.Kind, "name": info.Name, "isa": info.ISA, "workers": info.Workers, "activations": info.Activations.String(),
		"os": runtime.GOOS, "arch": runtime.GOARCH, "host": host, "reason": dev.reason,
		"cpu": info.Name, "cpus": runtime.NumCPU(), "kernel": kernelRelease(),
	}
	if info.Kind != "cpu" {
		m["cpu"] = processorName()
	}
	if dev.gpu != nil {
		maps.Copy(m, describeGPU(dev.gpu))
	}
	return m
}

// processorName is the name of the processor where the device is another one; empty if it cannot be used.
func processorName() string {
	d, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		return ""
	}
	name := d.Info().Name
	if err := d.Close(); err != nil {
		return ""
	}
	return name
}

// What the program, Go's runtime, the driver and its libraries, and launchers of several processes are told by
// variables.
var recordedPrefixes = []string{
	"APR_", "CUDA_", "CUBLAS", "NVIDIA_", "NCCL_", "HF_", "GO", "PET_", "SLURM_", "OMPI_COMM_WORLD_",
}
var recordedNames = []string{
	"MANAGED_MEMORY", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
}

// secretParts mark names of variables whose values are nobody's business.
var secretParts = []string{"TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL", "AUTH", "COOKIE"}

// environment picks the variables that may matter to a run. Of those that look like secrets it says that they are set.
// Values of GOPROXY and its kin, which may hold passwords, concern building and are left out.
func environment(environ []string) map[string]string {
	out := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		recorded := slices.Contains(recordedNames, name) || slices.ContainsFunc(recordedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		if !recorded || strings.HasPrefix(name, "GO") && !slices.Contains([]string{"GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GODEBUG", "GOTRACEBACK"}, name) {
			continue
		}
		if slices.ContainsFunc(secretParts, func(p string) bool { return strings.Contains(name, p) }) {
			value = "(set, not recorded)"
		}
		out[name] = value
	}
	return out
}
