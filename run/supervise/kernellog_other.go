//go:build !linux

package supervise

// kernelLog is not read here.
type kernelLog struct{}

func openKernelLog(string) *kernelLog   { return nil }
func (k *kernelLog) about(int) []string { return nil }
func (k *kernelLog) close()             {}
