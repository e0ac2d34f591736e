package distill

import (
	"strings"
	"testing"

	"apr/device"
	"apr/internal/fault"
)

// TestTogether: combinations that nobody has designed are refused by name, as not built; each setting alone is not.
func TestTogether(t *testing.T) {
	base := Config{Teacher: "t", Student: "s", Loss: device.LossSpec{Alpha: .5, Temperature: 1}}
	set := map[string]func(*Config){
		"--lora":                 func(c *Config) { c.LoRA = &LoRA{Merge: true} },
		"--quantize-aware":       func(c *Config) { c.Quantize = &Quantize{} },
		"--strategy ensemble":    func(c *Config) { c.Ensemble.More = []string{"u"} },
		"--strategy progressive": func(c *Config) { c.Guide = Guide{Weight: 1, Map: []string{MapAuto}} },
	}
	for name, apply := range set {
		c := base
		if apply(&c); c.validateTogether() != nil {
			t.Errorf("%s alone: %v", name, c.validateTogether())
		}
	}
	for _, pair := range [][2]string{
		{"--lora", "--strategy ensemble"}, {"--lora", "--strategy progressive"}, {"--lora", "--quantize-aware"},
		{"--quantize-aware", "--strategy ensemble"}, {"--quantize-aware", "--strategy progressive"},
	} {
		c := base
		set[pair[0]](&c)
		set[pair[1]](&c)
		if err := c.validateTogether(); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), pair[0]+" with "+pair[1]) {
			t.Errorf("%v: %v", pair, err)
		}
	}
}
