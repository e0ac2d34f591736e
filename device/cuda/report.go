package cuda

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"apr/device/cuda/driver"
)

// LibraryUse is a library that serves an open device, or that is missing.
type LibraryUse struct {
	Name    string `json:"name"`              // libcuda
	Path    string `json:"path,omitempty"`    // of the file that was opened
	Version string `json:"version,omitempty"` // as the library says, or else its file name
	Missing string `json:"missing,omitempty"` // why it does not serve; empty: it does
}

func (d *Device) uses(l LibraryUse) { d.libraries = append(d.libraries, l) }

// Libraries returns the libraries that serve the device and those that it looked for in vain.
func (d *Device) Libraries() []LibraryUse {
	cuda := LibraryUse{Name: string(driver.CUDA), Path: d.driver.Path(), Version: d.driver.Report().Version}
	return append([]LibraryUse{cuda}, d.libraries...)
}

// whyNot says why a library does not serve: what is wrong with each file that is there, or that there is none.
func whyNot(r driver.Report, err error) string {
	if r.Found() {
		return firstLine(err)
	}
	var broken []string
	for _, a := range r.Tried {
		if filepath.IsAbs(a.Path) && a.Error != driver.Absent {
			broken = append(broken, a.Path+": "+a.Error)
		}
	}
	if len(broken) > 0 {
		return strings.Join(broken, "; ")
	}
	return fmt.Sprintf("it is in none of %d places, which apr doctor lists", len(r.Tried))
}

// Notes returns what a user should know about how the device was opened: sentences about what is missing.
func (d *Device) Notes() (notes []string) {
	for _, l := range d.libraries {
		if l.Name == string(driver.CublasLt) && l.Missing != "" {
			notes = append(notes, "cublasLt does not serve, so matrix products run on the kernels of this program, which are slower: "+l.Missing)
		}
	}
	return notes
}

// Card describes the device for a record: name, identifiers, compute capability, memory.
func (d *Device) Card() driver.DeviceInfo { return d.desc }

// CUDA returns what the driver serves, such as 13.0.
func (d *Device) CUDA() string { return driver.VersionText(d.driver.Version()) }

// Identity names what the bits of results depend on beyond the program and the kind of device: the card, the driver,
// the arithmetic, and the library of products.
func (d *Device) Identity() string {
	products := "its own products"
	for _, l := range d.libraries {
		if l.Name == string(driver.CublasLt) && l.Missing == "" {
			products = "cublasLt " + l.Version
		}
	}
	return fmt.Sprintf("%s, CUDA %s, %s, %s", d.desc.Name, d.CUDA(), d.Arithmetic(), products)
}

// Managed reports whether memory is allocated as managed memory.
func (d *Device) Managed() bool { return d.managed }

// Arithmetic returns in which arithmetic products are computed: bf16, tf32 or f32.
func (d *Device) Arithmetic() string { return d.opts.Compute.String() }

// Skipped is a module that was not loaded.
type Skipped struct {
	Module  string `json:"module"`
	Kernels int    `json:"kernels"`
	Bytes   int    `json:"bytes"` // of PTX
	Because string `json:"because"`
}

// Loaded is what the kernel cache holds and how the plans of products were chosen.
type Loaded struct {
	Modules      int       `json:"modules"`
	Kernels      int       `json:"kernels"`
	Bytes        int64     `json:"bytes"` // of PTX
	Milliseconds float64   `json:"ms"`
	Skipped      []Skipped `json:"skipped"`
	Plans        int       `json:"gemm_plans"`
	Remembered   int       `json:"gemm_plans_remembered"` // chosen as the file of earlier measurements says
	Measured     int       `json:"gemm_plans_measured"`   // chosen by measuring
	Planning     float64   `json:"gemm_plans_ms"`
}

// String renders it in a line.
func (l Loaded) String() string {
	s := fmt.Sprintf("%d modules with %d kernels in %.0f ms", l.Modules, l.Kernels, l.Milliseconds)
	if l.Plans > 0 {
		s += fmt.Sprintf(", %d GEMM plans in %.0f ms (%d remembered, %d measured)", l.Plans, l.Planning, l.Remembered, l.Measured)
	}
	for _, m := range l.Skipped {
		s += fmt.Sprintf("; %s is not loaded, which saves %d kernels of %d bytes: %s", m.Module, m.Kernels, m.Bytes, m.Because)
	}
	return s
}

// Loaded returns what has been loaded so far.
func (d *Device) Loaded() Loaded {
	l := Loaded{Skipped: []Skipped{}}
	_ = d.ctx.Do(func(*driver.Thread) error { // the thread's own, so asked there; a closed one has nothing
		k := d.kernels
		l.Modules, l.Kernels, l.Bytes, l.Milliseconds = len(k.modules), len(k.entries), k.bytes, milliseconds(k.took)
		l.Skipped = append(l.Skipped, k.skipped...)
		if d.gemm != nil {
			s := d.gemm.Stats()
			l.Plans, l.Remembered, l.Measured, l.Planning = s.Remembered+s.Measured+s.First, s.Remembered, s.Measured, milliseconds(s.Took)
		}
		return nil
	})
	return l
}

// Loads returns how many modules were loaded and products planned since Open.
func (d *Device) Loads() int64 {
	loads, _ := d.kernels.counted()
	return loads
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
