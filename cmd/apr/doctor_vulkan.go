package main

import (
	"fmt"

	"apr/device/vulkan"
	"apr/internal/cli"
)

// vulkanAdapter is one Vulkan adapter in the JSON of apr doctor. What is not known is null.
type vulkanAdapter struct {
	Index   int     `json:"index"`
	Name    string  `json:"name"`
	Type    string  `json:"type"` // discrete, integrated, virtual, cpu, other
	Vulkan  string  `json:"vulkan"`
	Driver  string  `json:"driver"`
	Memory  int64   `json:"memory"` // bytes of the device's largest heap
	Budget  *int64  `json:"budget"` // what a run may take of it
	Binding int64   `json:"binding_bytes"`
	Shared  int     `json:"shared_bytes"`
	Usable  bool    `json:"usable"`
	ByName  bool    `json:"by_name"` // taken only if it is asked for by name
	Reason  *string `json:"reason"`  // why it is passed over
}

func newVulkanAdapter(a vulkan.Adapter) vulkanAdapter {
	v := vulkanAdapter{
		Index: a.Index, Name: a.Name, Type: a.Type.String(), Vulkan: a.APIText(), Driver: a.Driver,
		Binding: a.Limits.Binding, Shared: a.Limits.Shared,
		Usable: a.Unfit == nil, ByName: a.ByName,
	}
	if a.DriverInfo != "" {
		v.Driver += ", " + a.DriverInfo
	}
	for _, h := range a.Heaps {
		if h.Local {
			v.Memory = max(v.Memory, h.Bytes)
		}
	}
	if a.Budget > 0 {
		v.Budget = &a.Budget
	}
	switch {
	case a.Unfit != nil:
		v.Reason = orNull(a.Unfit.Error())
	case a.ByName:
		v.Reason = orNull("a program imitates it: --backend vulkan:" + vulkan.ShortName(a) + " takes it by name")
	}
	return v
}

// examineVulkan looks for the loader and lists the adapters.
func (r *doctorResult) examineVulkan() {
	loader, all, err := vulkan.Adapters()
	if err != nil {
		fix := hintOf(err)
		if !vulkan.BuiltIn {
			fix = "use a build without the tag static"
		}
		status := checkMissing
		if namedLoaderFails(err) {
			status = checkFailed
		}
		r.add("vulkan", status, err.Error(), fix)
		r.unusable("vulkan", err)
		return
	}
	var usable, named *string
	for _, a := range all {
		v := newVulkanAdapter(a)
		r.Adapters = append(r.Adapters, v)
		what := fmt.Sprintf("%s, %s, Vulkan %s, %s", v.Name, v.Type, v.Vulkan, v.Driver)
		switch {
		case !v.Usable:
		case v.ByName:
			named = &what
		case usable == nil:
			usable = &what
		}
	}
	r.add("vulkan", checkOK, fmt.Sprintf("%s shows %d adapters", loader, len(all)), "")
	switch {
	case usable != nil:
		r.Backends = append(r.Backends, doctorBackend{Name: "vulkan", Usable: true, Device: usable})
	case named != nil:
		r.Backends = append(r.Backends, doctorBackend{Name: "vulkan",
			Reason: orNull("no adapter is real hardware; by its name works " + *named)})
	default:
		r.Backends = append(r.Backends, doctorBackend{Name: "vulkan", Reason: r.Adapters[0].Reason})
	}
}

// printAdapters prints the table of the adapters, then why some are passed over.
func printAdapters(p *cli.Page, all []vulkanAdapter) {
	var rows [][]string
	for _, a := range all {
		rows = append(rows, []string{
			fmt.Sprint(a.Index), a.Name, a.Type, a.Vulkan, a.Driver, cli.Bytes(a.Memory), show(a.Budget,
				cli.Bytes), cli.Bytes(a.Binding),
		})
	}
	p.Table([]string{">#", "adapter", "type", "Vulkan", "driver", ">memory", ">budget", ">binding"}, rows)
	for _, a := range all {
		if a.Reason != nil {
			p.Printf("adapter %d is passed over: %s\n", a.Index, cli.Clean(*a.Reason))
		}
	}
}
