package main

import (
	"context"
	"fmt"

	"apr/device/cuda"
	"apr/internal/cli"
	"apr/internal/fault"
)

// gpuDevice is one CUDA device in the JSON of apr gpu and apr doctor. What is not known is null.
type gpuDevice struct {
	Index           int       `json:"index"`
	Name            string    `json:"name"`
	UUID            string    `json:"uuid"`
	PCI             string    `json:"pci"`
	Capability      string    `json:"compute_capability"`
	Multiprocessors int       `json:"multiprocessors"`
	Integrated      *bool     `json:"integrated"`
	Class           string    `json:"class"`
	Memory          gpuMemory `json:"memory"`
	Usable          bool      `json:"usable"`
	Reason          *string   `json:"reason"` // why it is not usable
	Utilisation     *int      `json:"utilisation_percent"`
	Power           *float64  `json:"power_watts"`
	Clock           *int      `json:"clock_mhz"`
	Temperature     *int      `json:"temperature_celsius"`
}

// gpuMemory is the memory of a device, in bytes.
type gpuMemory struct {
	Total   int64  `json:"total"`
	Free    *int64 `json:"free"`
	Budget  *int64 `json:"budget"`  // what a run may take of it
	Managed bool   `json:"managed"` // whether it would be allocated as managed memory
}

// newGPUDevice renders what was found; override is the value of MANAGED_MEMORY.
func newGPUDevice(c cuda.Card, override string) (gpuDevice, error) {
	managed, err := cuda.AllocationRule(c.Class, override)
	g := gpuDevice{
		Index: c.Index, Name: c.Name, UUID: c.UUID, PCI: c.PCI, Capability: fmt.Sprintf("%d.%d", c.Major, c.Minor),
		Multiprocessors: c.Multiprocessors, Class: string(c.Class), Usable: c.Unfit == nil,
		Memory:      gpuMemory{Total: c.TotalMemory, Managed: managed},
		Utilisation: c.Utilisation, Power: c.Power, Clock: c.Clock, Temperature: c.Temperature,
	}
	if c.Integrated >= 0 {
		integrated := c.Integrated == 1
		g.Integrated = &integrated
	}
	if c.BudgetErr == nil {
		g.Memory.Free, g.Memory.Budget = &c.Budget.Free, &c.Budget.Bytes
	}
	if c.Unfit != nil {
		reason := c.Unfit.Error()
		g.Reason = &reason
	}
	return g, err
}

// gpuResult is the JSON of apr gpu.
type gpuResult struct {
	CUDA    *string     `json:"cuda"`   // the version that the driver supports: "13.0"
	Driver  *string     `json:"driver"` // the installed driver: "580.82.07"
	Path    *string     `json:"path"`   // of libcuda
	Devices []gpuDevice `json:"devices"`
}

// gpus takes the inventory; without a usable driver or any device the error says why.
func gpus(override string) (gpuResult, error) {
	r := gpuResult{Devices: []gpuDevice{}}
	inv, err := cuda.TakeInventory()
	r.CUDA, r.Driver, r.Path = orNull(inv.CUDA), orNull(inv.Installed), orNull(inv.Path)
	for _, c := range inv.Cards {
		g, ruleErr := newGPUDevice(c, override)
		if err == nil {
			err = ruleErr
		}
		r.Devices = append(r.Devices, g)
	}
	if err == nil && len(r.Devices) == 0 {
		err = fault.In(fault.Unavailable, inv.Path, "the CUDA driver sees no device").WithID("E-CUDA-057").
			WithHint("see what nvidia-smi says, and CUDA_VISIBLE_DEVICES")
	}
	return r, err
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Text prints a line about the driver and a table of the devices.
func (r gpuResult) Text(p *cli.Page) {
	if r.CUDA != nil {
		driver := ""
		if r.Driver != nil {
			driver = " of driver " + *r.Driver
		}
		p.Printf("CUDA %s%s, %s\n", *r.CUDA, driver, cli.Clean(*r.Path))
	}
	printDevices(p, r.Devices)
}

// printDevices prints the table of the devices, then why some cannot be used.
func printDevices(p *cli.Page, devices []gpuDevice) {
	if len(devices) == 0 {
		return
	}
	var rows [][]string
	for _, g := range devices {
		memory := "plain"
		if g.Memory.Managed {
			memory = "managed"
		}
		rows = append(rows, []string{
			fmt.Sprint(g.Index), g.Name, g.Capability, g.Class, memory, cli.Bytes(g.Memory.Total), show(g.Memory.Free, cli.Bytes),
			show(g.Memory.Budget, cli.Bytes), show(g.Utilisation, unit[int]("%d %%")), show(g.Power, unit[float64]("%.0f W")),
			show(g.Clock, unit[int]("%d MHz")), show(g.Temperature, unit[int]("%d °C")),
		})
	}
	p.Table([]string{">#", "name", ">capability", "memory", "allocated", ">total", ">free", ">budget", ">busy", ">power", ">clock", ">heat"}, rows)
	for _, g := range devices {
		if g.Reason != nil {
			p.Printf("device %d cannot be used: %s\n", g.Index, cli.Clean(*g.Reason))
		}
	}
}

// show renders a value that may be unknown.
func show[T any](v *T, text func(T) string) string {
	if v == nil {
		return "?"
	}
	return text(*v)
}

// unit makes a renderer of a format.
func unit[T any](format string) func(T) string {
	return func(v T) string { return fmt.Sprintf(format, v) }
}

// managedOption is MANAGED_MEMORY, which has no flag.
func managedOption(p *string) cli.Option {
	return cli.Option{Name: "managed-memory", EnvOnly: true, Env: cuda.ManagedVariable, Value: cli.Enum(p, "auto", "auto", "0", "1"), Help: "allocate managed memory"}
}

func gpuCommand() *cli.Command {
	var managed string
	return &cli.Command{
		Name: "gpu", Short: "List the CUDA devices",
		Long: "Lists the CUDA devices with the class of their memory and what a run may take of it. apr doctor says why there\n" +
			"are none. CUDA_VISIBLE_DEVICES hides devices.",
		Example: "apr gpu\napr gpu --json",
		Exits:   []fault.Kind{fault.Unavailable},
		Options: []cli.Option{managedOption(&managed)},
		Run:     func(context.Context, *cli.Env) (cli.Result, error) { return gpus(managed) },
	}
}

// cudaDevices reports whether the CUDA device is built in, whether its driver can be used, and the devices' names.
func cudaDevices() (built, available bool, names []string) {
	names, err := cuda.DeviceNames()
	return cuda.BuiltIn, err == nil, names
}
