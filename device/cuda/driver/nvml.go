package driver

import (
	"bytes"
	"strings"
	"unsafe"

	"apr/internal/fault"
)

// Management is libnvidia-ml, opened and initialised. Any goroutine may use it and its Monitors; it needs no context
// and does not disturb the device.
type Management struct {
	path  string
	calls managementCalls
}

// managementCalls are the functions of NVML that are used.
type managementCalls struct {
	init, driverVersion                      procedure
	byIndex, byUUID, byPCI                   procedure
	utilisation, memory, power, clock, therm procedure
}

// OpenManagement finds, opens and initialises NVML. Errors are faults of kind Unavailable.
func OpenManagement() (*Management, error) { return Host().openManagement(openHost) }

// openManagement is OpenManagement on a given machine.
func (s System) openManagement(load opener) (*Management, error) {
	if !Dynamic {
		return nil, builtWithout()
	}
	lib, report := s.find(NVML, 0, load)
	if lib == nil {
		return nil, report.Err()
	}
	m := &Management{path: lib.path}
	for _, row := range []struct {
		p    *procedure
		name string
	}{
		{&m.calls.init, "nvmlInit_v2"}, {&m.calls.driverVersion, "nvmlSystemGetDriverVersion"},
		{&m.calls.byIndex, "nvmlDeviceGetHandleByIndex_v2"}, {&m.calls.byUUID, "nvmlDeviceGetHandleByUUID"},
		{&m.calls.byPCI, "nvmlDeviceGetHandleByPciBusId_v2"}, {&m.calls.utilisation, "nvmlDeviceGetUtilizationRates"},
		{&m.calls.memory, "nvmlDeviceGetMemoryInfo"}, {&m.calls.power, "nvmlDeviceGetPowerUsage"},
		{&m.calls.clock, "nvmlDeviceGetClockInfo"}, {&m.calls.therm, "nvmlDeviceGetTemperature"},
	} {
		var err error
		if *row.p, err = lib.bind(row.name); err != nil {
			return nil, err
		}
	}
	var err error
	keepSignals(func() { err = nvml(&m.calls.init) })
	if err != nil {
		return nil, fault.In(fault.Unavailable, m.path, "NVML cannot be used").WithID("E-CUDA-055").Because(err)
	}
	return m, nil
}

// managementErrors are the names of nvmlReturn_t.
var managementErrors = map[int]string{
	1: "NVML_ERROR_UNINITIALIZED", 2: "NVML_ERROR_INVALID_ARGUMENT", 3: "NVML_ERROR_NOT_SUPPORTED",
	4: "NVML_ERROR_NO_PERMISSION", 6: "NVML_ERROR_NOT_FOUND", 7: "NVML_ERROR_INSUFFICIENT_SIZE",
	9: "NVML_ERROR_DRIVER_NOT_LOADED", 10: "NVML_ERROR_TIMEOUT", 12: "NVML_ERROR_LIBRARY_NOT_FOUND",
	13: "NVML_ERROR_FUNCTION_NOT_FOUND", 15: "NVML_ERROR_GPU_IS_LOST", 16: "NVML_ERROR_RESET_REQUIRED",
	17: "NVML_ERROR_OPERATING_SYSTEM", 18: "NVML_ERROR_LIB_RM_VERSION_MISMATCH", 20: "NVML_ERROR_MEMORY",
	999: "NVML_ERROR_UNKNOWN",
}

// nvml calls a function of NVML and returns its result as an error: nil or an *Error.
//
//go:uintptrescapes
func nvml(p *procedure, args ...uintptr) error {
	code := int(int32(invoke(p.addr, args...))) // nvmlReturn_t is an int, as above
	if code == 0 {
		return nil
	}
	return &Error{Call: p.name, Code: code, Name: managementErrors[code]}
}

// DriverVersion returns the version of the installed driver, such as 580.82.07.
func (m *Management) DriverVersion() (string, error) {
	var text [96]byte
	err := nvml(&m.calls.driverVersion, uintptr(unsafe.Pointer(&text)), uintptr(len(text)))
	version, _, _ := bytes.Cut(text[:], []byte{0})
	return string(version), err
}

// Monitor is one device as NVML sees it. Each figure has its own error: devices lack some (an integrated one has no
// memory of its own).
type Monitor struct {
	m      *Management
	device uintptr
}

// Index returns the i-th device in NVML's own order, which CUDA_VISIBLE_DEVICES does not change.
func (m *Management) Index(i int) (*Monitor, error) {
	d := &Monitor{m: m}
	err := nvml(&m.calls.byIndex, uintptr(i), uintptr(unsafe.Pointer(&d.device)))
	return d, err
}

// Find returns the device that the driver describes so: by its UUID, else by its bus address.
func (m *Management) Find(info DeviceInfo) (*Monitor, error) {
	d := &Monitor{m: m}
	err := m.named(&m.calls.byUUID, info.UUID, d)
	if err != nil && info.PCI != "" { // a part of a card (MIG) has a UUID of another form
		err = m.named(&m.calls.byPCI, info.PCI, d)
	}
	return d, err
}

// named asks for a device by a text.
func (m *Management) named(p *procedure, name string, d *Monitor) error {
	text := append([]byte(strings.ReplaceAll(name, "\x00", "")), 0)
	return nvml(p, uintptr(unsafe.Pointer(unsafe.SliceData(text))), uintptr(unsafe.Pointer(&d.device)))
}

// Utilisation returns the percentages of the last sampling period in which kernels ran and memory was read or written.
func (d *Monitor) Utilisation() (compute, memory int, err error) {
	var v struct{ gpu, memory uint32 }
	err = nvml(&d.m.calls.utilisation, d.device, uintptr(unsafe.Pointer(&v)))
	return int(v.gpu), int(v.memory), err
}

// Memory returns the bytes in use, by all processes, and the total.
func (d *Monitor) Memory() (used, total int64, err error) {
	var v struct{ total, free, used uint64 }
	err = nvml(&d.m.calls.memory, d.device, uintptr(unsafe.Pointer(&v)))
	return int64(v.used), int64(v.total), err
}

// Power returns the power drawn, in watts.
func (d *Monitor) Power() (float64, error) {
	var milliwatts uint32
	err := nvml(&d.m.calls.power, d.device, uintptr(unsafe.Pointer(&milliwatts)))
	return float64(milliwatts) / 1000, err
}

// Clock returns the clock of the multiprocessors, in MHz.
func (d *Monitor) Clock() (int, error) {
	const multiprocessors = 1 // NVML_CLOCK_SM
	var mhz uint32
	err := nvml(&d.m.calls.clock, d.device, multiprocessors, uintptr(unsafe.Pointer(&mhz)))
	return int(mhz), err
}

// Temperature returns the temperature of the chip, in °C.
func (d *Monitor) Temperature() (int, error) {
	const chip = 0 // NVML_TEMPERATURE_GPU
	var celsius uint32
	err := nvml(&d.m.calls.therm, d.device, chip, uintptr(unsafe.Pointer(&celsius)))
	return int(celsius), err
}
