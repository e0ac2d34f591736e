//go:build vulkan

package vulkan

import (
	"strings"
	"testing"

	"apr/device/devicetest"
)

// TestWide: products with wide tiles, which real cards take, pass the suite too.
func TestWide(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	d.wide = true
	tried := 0
	for _, c := range devicetest.Cases() {
		if group, _, _ := strings.Cut(c.Name, "/"); group != "matmul" {
			continue
		}
		tried++
		if err := c.Check(d); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	t.Logf("%d cases", tried)
}
