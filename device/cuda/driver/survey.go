package driver

import (
	"strconv"
	"unsafe"
)

// FindLibraries opens all Libraries that can be found and reports on each, in that order. It calls nothing in them but
// what returns their version, so it is safe on a machine whose driver is broken.
func FindLibraries() []Report { return Host().survey(openHost) }

// survey is FindLibraries on a given machine.
func (s System) survey(load opener) []Report {
	reports := make([]Report, 0, len(Libraries))
	driverVersion := 0
	for _, l := range Libraries {
		lib, r := s.find(l, driverVersion, load)
		if lib != nil {
			v := lib.ask(l)
			if l == CUDA {
				driverVersion = v
			} else if v > 0 {
				r.Version = dotted(v)
			}
		}
		reports = append(reports, r)
	}
	if driverVersion > 0 {
		reports[0].CUDA = driverVersion
	}
	return reports
}

// ask returns the version that a library says it has, 0 if it says none.
func (l *library) ask(which Library) int {
	switch which {
	case CUDA:
		return l.number("cuDriverGetVersion")
	case NCCL:
		return l.number("ncclGetVersion")
	case CublasLt:
		if p, err := l.bind("cublasLtGetVersion"); err == nil {
			return int(invoke(p.addr))
		}
	}
	return 0
}

// number calls a function that writes its version to an int.
func (l *library) number(name string) int {
	p, err := l.bind(name)
	if err != nil {
		return 0
	}
	v := new(int32)
	if int32(invoke(p.addr, uintptr(unsafe.Pointer(v)))) != 0 {
		return 0
	}
	return int(*v)
}

// dotted renders 10000·major + 100·minor + patch.
func dotted(v int) string {
	return strconv.Itoa(v/10000) + "." + strconv.Itoa(v/100%100) + "." + strconv.Itoa(v%100)
}
