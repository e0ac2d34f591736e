package driver

import "fmt"

// Error is a call that failed.
type Error struct {
	Call string // the function
	Code int32  // VkResult
}

// The results that callers tell apart.
const (
	timeout           = 2
	outOfHostMemory   = -1
	outOfDeviceMemory = -2
	deviceLost        = -4
	tooManyObjects    = -10
)

var resultNames = map[int32]string{
	timeout: "it does not end", outOfHostMemory: "out of host memory", outOfDeviceMemory: "out of device memory",
	-3: "initialisation failed", deviceLost: "device lost", -5: "memory cannot be mapped", -6: "a layer is not there",
	-7: "an extension is not there", -8: "a feature is not there", -9: "no driver fits the loader",
	tooManyObjects: "too many objects",
	-1000069000:    "out of pool memory",
}

// Error names the function and the result.
func (e *Error) Error() string {
	if name, ok := resultNames[e.Code]; ok {
		return e.Call + ": " + name
	}
	return fmt.Sprintf("%s: result %d", e.Call, e.Code)
}

// OutOfMemory reports whether memory ran out.
func (e *Error) OutOfMemory() bool {
	return e.Code == outOfHostMemory || e.Code == outOfDeviceMemory || e.Code == tooManyObjects
}

// DeviceLost reports whether nothing more can be done with the device.
func (e *Error) DeviceLost() bool { return e.Code == deviceLost }

// Hung reports whether the device did not end in time what it was given.
func (e *Error) Hung() bool { return e.Code == timeout }

// failed returns the error of a call, or nil.
func failed(call string, result uintptr) error {
	if code := int32(uint32(result)); code != 0 {
		return &Error{call, code}
	}
	return nil
}
