package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"apr/bench"
	"apr/device"
	"apr/device/vulkan"
	"apr/internal/cli"
	"apr/internal/fault"
)

// backendValue is --backend.
func backendValue(p *string) *cli.EnumValue {
	return cli.Enum(p, "auto", "auto", "cpu", "cuda", "vulkan").Alias("wgpu", "vulkan").Named("vulkan")
}

// backendHelp is the line of help of --backend, but for distill.
const backendHelp = "where to compute: auto takes a GPU if there is one, vulkan:NAME an adapter by its name; alias wgpu"

// vulkanName returns the adapter that a backend names, or none, and whether it is Vulkan's.
func vulkanName(backend string) (adapter string, ok bool) {
	word, adapter, _ := strings.Cut(backend, ":")
	return adapter, word == "vulkan"
}

// How adapters are found and opened; tests put devices that compute wrongly in their place.
var (
	vulkanAdapters = vulkan.Adapters
	openVulkan     = func(o vulkan.Options) (device.Device, error) { return vulkan.Open(o) }
)

// namedLoaderFails reports whether err says that the loader that a variable names cannot be used: somebody expects
// it to be.
func namedLoaderFails(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.ID == vulkan.NamedLoader
}

// vulkan opens an adapter, which computes in float32.
func (b backend) vulkan(adapter, reason string) (*opened, error) {
	if b.dtype == "bf16" || b.dtype == "tf32" {
		return nil, fault.New(fault.Unavailable, "--dtype %s on Vulkan; it computes in f32", b.dtype)
	}
	if b.kernelLog {
		return nil, fault.New(fault.Unavailable, "--kernel-log: it is built for CUDA devices")
	}
	o := vulkan.Options{Adapter: adapter}
	if dir, err := os.UserCacheDir(); err == nil {
		o.CacheDir = filepath.Join(dir, "apr")
	}
	dev, err := openVulkan(o)
	if err != nil {
		return nil, err
	}
	return &opened{Device: dev, asked: b.name, reason: reason}, nil
}

// fasterVulkan returns a card that is faster than the CPU at a product of matrices, or why there is none.
func (b backend) fasterVulkan(e *cli.Env) (*opened, string) {
	if !vulkan.BuiltIn {
		return nil, "not built in"
	}
	if _, all, err := vulkanAdapters(); err != nil {
		if namedLoaderFails(err) {
			e.Log.Warn("the GPU is not used: " + err.Error())
		}
		return nil, err.Error()
	} else if !hardware(all) {
		return nil, "no adapter is real hardware; others are taken by name alone, as in --backend vulkan:llvmpipe"
	}
	o, err := b.vulkan("", "")
	if err != nil {
		return nil, err.Error()
	}
	own, err := b.cpu(e, "")
	if err != nil {
		o.reason = "a GPU is there, and the CPU cannot be used"
		return o, ""
	}
	defer own.Close()
	theirs, ours := rateOf(o.Device), rateOf(own.Device)
	if theirs <= ours {
		o.Close()
		return nil, fmt.Sprintf("%s does %.0f GFLOP/s in a product of matrices, the CPU %.0f", o.Info().Name, theirs, ours)
	}
	o.reason = fmt.Sprintf("it does %.0f GFLOP/s in a product of matrices, the CPU %.0f", theirs, ours)
	return o, ""
}

func hardware(all []vulkan.Adapter) bool {
	for _, a := range all {
		if !a.ByName && a.Unfit == nil {
			return true
		}
	}
	return false
}

// rateOf measures a product of square matrices, in GFLOP/s; 0 if it fails.
func rateOf(d device.Device) float64 {
	rate, err := bench.PeakGFLOPS(context.Background(), d, d.NewStream(), peakSide)
	if err != nil {
		return 0
	}
	return rate
}
