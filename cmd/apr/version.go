package main

import (
	"context"
	"runtime"
	"runtime/debug"

	"apr/internal/cli"
)

// version is the release, also written into the files apr makes.
const version = "0.1.0"

// versionResult is the JSON of apr version.
type versionResult struct {
	Name           string   `json:"name"`
	Version        string   `json:"version"`
	GitSHA         *string  `json:"git_sha"` // null when the binary was built without version control information
	Dirty          *bool    `json:"dirty"`
	GoVersion      string   `json:"go_version"`
	CUDAFeature    bool     `json:"cuda_feature"`           // the CUDA device is built in
	CUDAAvailable  bool     `json:"cuda_runtime_available"` // and its driver works
	VisibleDevices []string `json:"visible_devices"`
	platform       string
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Short: "Print the version and what the binary can use",
		Example: "apr version\napr version --json",
		Run:     func(context.Context, *cli.Env) (cli.Result, error) { return versionInfo(), nil },
	}
}

// versionInfo asks the binary about itself.
func versionInfo() versionResult {
	r := versionResult{Name: "apr", Version: version, GoVersion: runtime.Version(), platform: runtime.GOOS + "/" + runtime.GOARCH}
	r.CUDAFeature, r.CUDAAvailable, r.VisibleDevices = cudaDevices()
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return r
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.GitSHA = &s.Value
		case "vcs.modified":
			dirty := s.Value == "true"
			r.Dirty = &dirty
		}
	}
	return r
}

// Text prints one line about the program and one about CUDA.
func (r versionResult) Text(p *cli.Page) {
	sha := ""
	if r.GitSHA != nil {
		sha = " " + *r.GitSHA
		if r.Dirty != nil && *r.Dirty {
			sha += "-dirty"
		}
	}
	p.Printf("%s %s%s %s %s\n", r.Name, r.Version, sha, r.GoVersion, r.platform)
	switch {
	case !r.CUDAFeature:
		p.Printf("CUDA: not built in\n")
	case !r.CUDAAvailable:
		p.Printf("CUDA: built in, no device found (apr doctor says why)\n")
	default:
		p.Printf("CUDA: %d device(s)\n", len(r.VisibleDevices))
	}
}
