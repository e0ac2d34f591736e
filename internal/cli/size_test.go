package cli

import "testing"

// An amount of memory is a number of GiB, or has its unit, in any letter case; letters alone are powers of 1024.
func TestGiB(t *testing.T) {
	for text, want := range map[string]float64{
		"24": 24, "24.5": 24.5, "24GiB": 24, "24G": 24, "24g": 24, "24 gib": 24, "512MiB": 0.5, "512m": 0.5,
		"2T": 2048, "1048576KiB": 1,
		"16GB": 16e9 / (1 << 30), "1073741824B": 1,
	} {
		var p float64
		v := GiB(&p)
		if err := v.set(text); err != nil || p != want {
			t.Errorf("%q is %v GiB, %v; want %v", text, p, err, want)
		}
		var again float64
		if err := GiB(&again).set(v.text()); err != nil || again != p {
			t.Errorf("%q is written as %q, which is read as %v, %v", text, v.text(), again, err)
		}
	}
	for text, want := range map[string]string{
		"4X":  `"4X" is no amount of memory: a number of GiB, or one with its unit: 24, 24GiB, 512MiB, 16GB`,
		"GiB": `"GiB" is no amount of memory: a number of GiB, or one with its unit: 24, 24GiB, 512MiB, 16GB`,
		"0":   "0 is too small: above 0", "-1G": "-1G is too small: above 0",
		"9999999T": "9999999T is too large: at most 1048576 TiB",
	} {
		p := 7.0
		v := GiB(&p)
		if err := v.set(text); err == nil || err.Error() != want || p != 0 {
			t.Errorf("%q is %v GiB, error %v; want %q", text, p, err, want)
		}
	}
}

// Sizes have a unit, and none is below 0.
func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"15GB": 15e9, "1.5TiB": 3 << 39, "64KiB": 64 << 10, "64k": 64 << 10, "0B": 0, "12 MB": 12e6,
	} {
		if n, err := ParseSize(text); err != nil || n != want {
			t.Errorf("%q is %d, %v; want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "15", "GB", "-1GB", "NaNGB", "9e30TB", "0x1GB"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("%q is taken for %d bytes", text, n)
		}
	}
}
