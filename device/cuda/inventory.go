package cuda

import (
	"os"

	"apr/device/cuda/driver"
	"apr/internal/cgroup"
	"apr/internal/fault"
)

// Card is a CUDA device as it is found, before anything is opened on it.
type Card struct {
	driver.DeviceInfo
	Class  MemoryClass
	Unfit  error  // why the kernels cannot run on it; nil: they can
	Budget Budget // what a run may allocate now; all 0 if BudgetErr says why it is not known

	BudgetErr error
	// What the card does now, nil if unknown.
	Utilisation, Clock, Temperature *int // percent, MHz, °C
	Power                           *float64
}

// Inventory is what the driver shows.
type Inventory struct {
	CUDA      string // what the driver serves: "13.0"
	Installed string // version of the installed driver, "580.82.07"; empty if NVML does not say
	Path      string // of libcuda
	Cards     []Card
}

// TakeInventory opens the driver and describes every device. A device whose free memory only a context can tell gets
// one for a moment; nothing else is done to devices. Without a driver, or without a device, it fails with a fault of
// kind Unavailable that says what was tried.
func TakeInventory() (Inventory, error) {
	drv, err := driver.Open()
	if err != nil {
		return Inventory{}, err
	}
	inv := Inventory{CUDA: driver.VersionText(drv.Version()), Path: drv.Path()}
	n, err := drv.DeviceCount()
	if err != nil {
		return inv, unavailable("the CUDA devices cannot be counted", err)
	}
	nvml, err := driver.OpenManagement()
	if err == nil {
		inv.Installed, _ = nvml.DriverVersion() // stays empty
	}
	for i := range n {
		info, err := drv.Describe(i)
		if err != nil {
			return inv, fault.New(fault.Unavailable, "CUDA device %d cannot be described", i).WithID("E-CUDA-062").Because(err)
		}
		inv.Cards = append(inv.Cards, inspect(drv, nvml, info))
	}
	return inv, nil
}

// DeviceNames returns the names of the devices that the driver shows; none without a driver.
func DeviceNames() (names []string, err error) {
	drv, err := driver.Open()
	if err != nil {
		return nil, err
	}
	n, err := drv.DeviceCount()
	for i := 0; i < n && err == nil; i++ {
		var info driver.DeviceInfo
		info, err = drv.Describe(i)
		names = append(names, info.Name)
	}
	return names, err
}

// BuiltIn reports whether this binary can open a CUDA driver at all.
const BuiltIn = driver.Dynamic

// Absent is the error of an attempt whose file is not there.
const Absent = driver.Absent

// Libraries looks for every library that the device can use; see driver.FindLibraries.
func Libraries() []driver.Report { return driver.FindLibraries() }

// inspect looks at one card; nvml may be nil.
func inspect(drv *driver.Driver, nvml *driver.Management, info driver.DeviceInfo) Card {
	c := Card{DeviceInfo: info, Class: ClassifyDeviceMemory(MemoryAttributesOf(info)), Unfit: unfit(info)}
	var monitor *driver.Monitor
	if nvml != nil {
		if m, err := nvml.Find(info); err == nil {
			monitor = m
			c.observe(m)
		}
	}
	c.Budget, c.BudgetErr = budgetOf(drv, monitor, info, c.Class)
	return c
}

// unfit says why the kernels cannot run on a card, or nil.
func unfit(info driver.DeviceInfo) error {
	if info.Major >= oldest {
		return nil
	}
	return fault.New(fault.Unavailable, "%s has compute capability %d.%d", info.Name, info.Major, info.Minor).
		WithHint("%d.0 or later is needed (Ampere and newer); --backend cpu works everywhere", oldest).WithID("E-CUDA-002")
}

// observe fills in what NVML tells; cards lack some of it.
func (c *Card) observe(m *driver.Monitor) {
	if v, _, err := m.Utilisation(); err == nil {
		c.Utilisation = &v
	}
	if v, err := m.Clock(); err == nil {
		c.Clock = &v
	}
	if v, err := m.Temperature(); err == nil {
		c.Temperature = &v
	}
	if v, err := m.Power(); err == nil {
		c.Power = &v
	}
}

// budgetOf returns what a run may allocate on a card.
func budgetOf(drv *driver.Driver, monitor *driver.Monitor, info driver.DeviceInfo, c MemoryClass) (Budget, error) {
	if c == Integrated {
		host, err := HostMemoryNow()
		if err != nil {
			return Budget{}, err
		}
		return MemoryBudget(c, 0, host), nil
	}
	free, err := freeMemory(drv, monitor, info)
	if err != nil {
		return Budget{}, err
	}
	return MemoryBudget(c, free, HostMemory{}), nil
}

// HostMemoryNow reads /proc/meminfo and the limits of the process's cgroup.
func HostMemoryNow() (HostMemory, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return HostMemory{}, meminfo("cannot be read").Because(err)
	}
	defer f.Close()
	h, err := ReadHostMemory(f)
	if err != nil {
		return h, err
	}
	if g, err := cgroup.Find("/", os.Getpid()); err == nil {
		if free, ok := g.Free(); ok {
			h.Available = min(h.Available, free)
		}
	}
	return h, nil
}

// freeMemory asks NVML for the free memory of a card, or else a context. NVML speaks of the whole card where the driver
// shows a part of it (MIG), so its word counts only if it agrees about the total.
func freeMemory(drv *driver.Driver, monitor *driver.Monitor, info driver.DeviceInfo) (free int64, err error) {
	if monitor != nil {
		used, total, err := monitor.Memory()
		if difference := total - info.TotalMemory; err == nil && max(difference, -difference) <= info.TotalMemory/10 {
			return max(0, total-used), nil
		}
	}
	ctx, err := drv.NewContext(info.Index)
	if err != nil {
		return 0, err
	}
	err = ctx.Do(func(t *driver.Thread) (err error) {
		free, _, err = t.MemInfo()
		return err
	})
	if e := ctx.Close(); err == nil {
		err = e
	}
	return free, err
}
