package watch

import (
	"bytes"
	"fmt"
	"os"
)

// transferred returns the bytes that this process has read and written by system calls, 0 where it may not know.
func transferred() int64 {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	var sum int64
	for line := range bytes.Lines(b) {
		var n int64
		var name string
		if k, _ := fmt.Sscanf(string(line), "%s %d", &name, &n); k == 2 && (name == "rchar:" || name == "wchar:") {
			sum += n
		}
	}
	return sum
}
