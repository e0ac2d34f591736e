//go:build static || !(((linux || darwin) && (amd64 || arm64)) || (windows && amd64))

package driver

import "errors"

// Dynamic says whether this binary can open shared libraries.
const Dynamic = false

var errStatic = errors.New("this binary cannot open shared libraries")

func dlopen(string) (uintptr, error) { return 0, errStatic }

func dlsym(uintptr, string) (uintptr, error) { return 0, errStatic }

// invoke has nothing to call: no function was ever found.
func invoke(uintptr, ...uintptr) uintptr {
	panic("driver: a function of a library that cannot have been opened")
}
