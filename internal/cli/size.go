package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// sizeUnits are the units of sizes in small letters, longer names first. A letter alone is a power of
// 1024, as in docker and Slurm.
var sizeUnits = []struct {
	name  string
	bytes float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"b", 1},
}

// cutUnit returns a size's number and the bytes of its unit, in any letter case; 0: it has no unit.
func cutUnit(s string) (number string, bytes float64) {
	small := strings.ToLower(s)
	for _, u := range sizeUnits {
		if strings.HasSuffix(small, u.name) {
			return strings.TrimSpace(s[:len(s)-len(u.name)]), u.bytes
		}
	}
	return s, 0
}

// ParseSize reads a size with its unit, such as 15GB or 1.5TiB, in bytes.
func ParseSize(s string) (int64, error) {
	number, unit := cutUnit(s)
	v, err := parseFloat(number)
	n := v * unit
	if err != nil || unit == 0 || n < 0 || n >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is no size: a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB", s)
	}
	return int64(n), nil
}

// sizeValue is an amount of memory above 0 in GiB: a number, or a size with its unit.
type sizeValue struct{ p *float64 }

// GiB is an amount of memory above 0, stored in GiB: 24 and 24GiB are the same, and 24G; 24GB is less.
// 0 stands for none given.
func GiB(p *float64) Value { *p = 0; return &sizeValue{p} }

func (v *sizeValue) set(s string) error {
	number, unit := cutUnit(s)
	if unit == 0 {
		unit = 1 << 30
	}
	n, err := parseFloat(number)
	if n *= unit / (1 << 30); err != nil {
		return fmt.Errorf("%q is no amount of memory: a number of GiB, or one with its unit: 24, 24GiB, 512MiB, 16GB", s)
	}
	switch {
	case n < 1.0/(1<<30): // a byte
		return fmt.Errorf("%s is too small: above 0", s)
	case n > 1<<30: // budgets are added in int64
		return fmt.Errorf("%s is too large: at most %d TiB", s, 1<<20)
	}
	*v.p = n
	return nil
}

// text is a number of GiB, which set reads as the same.
func (v *sizeValue) text() string { return strconv.FormatFloat(*v.p, 'g', -1, 64) }
func (v *sizeValue) get() any     { return *v.p }
func (v *sizeValue) meta() string { return "SIZE" }
func (v *sizeValue) accepts(tag string) bool {
	return tag == "!!int" || tag == "!!float" || tag == "!!str"
}
func (v *sizeValue) schema() map[string]any {
	return map[string]any{"anyOf": []any{
		map[string]any{"type": "number", "exclusiveMinimum": 0},
		map[string]any{"type": "string", "pattern": `^[0-9.]+ *([kKmMgGtT]([iI]?[bB])?|[bB])$`},
	}}
}
