package cuda

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"apr/device/cuda/driver"
	"apr/internal/contracttest"
	"apr/internal/fault"
)

// flags are what the driver may say of an attribute.
var flags = []int{0, 1, -1}

// TestClassifyTotal is harness verify_classify_device_memory_total: every compute capability, unified addressing,
// integrated and host page tables. The class depends on the last two only; whatever pageable access says, too.
func TestClassifyTotal(t *testing.T) {
	want := map[[2]int]MemoryClass{ // by integrated, uses host page tables
		{1, 1}: Integrated, {1, 0}: Integrated, {1, -1}: Integrated,
		{0, 1}: Coherent, {-1, 1}: Coherent,
		{0, 0}: Discrete, {0, -1}: Discrete, {-1, 0}: Discrete, {-1, -1}: Discrete,
	}
	cases := 0
	for cc := range 201 {
		for ua := range 2 {
			for _, integrated := range flags {
				for _, tables := range flags {
					cases++
					for _, pageable := range flags {
						a := MemoryAttributes{integrated, tables, pageable, ua, cc / 10, cc % 10}
						if got := ClassifyDeviceMemory(a); got != want[[2]int{integrated, tables}] {
							t.Fatalf("%+v is %q, want %q", a, got, want[[2]int{integrated, tables}])
						}
					}
				}
			}
		}
	}
	if cases != 3618 {
		t.Errorf("%d cases, want 3618", cases)
	}
	contracttest.Cases(t, cases)
}

// TestClassifyKnown: devices by what their drivers say. A classification by unified addressing, by pageable access, or
// by compute capability gets one of them wrong.
func TestClassifyKnown(t *testing.T) {
	tests := []struct {
		name string
		a    MemoryAttributes
		want MemoryClass
	}{
		{"GB10", MemoryAttributes{1, 1, 1, 1, 12, 1}, Integrated},
		{"Jetson Orin", MemoryAttributes{1, 0, 0, 1, 8, 7}, Integrated},
		{"GH200", MemoryAttributes{0, 1, 1, 1, 9, 0}, Coherent},
		{"H200", MemoryAttributes{0, 0, 0, 1, 9, 0}, Discrete},
		{"H200 with HMM", MemoryAttributes{0, 0, 1, 1, 9, 0}, Discrete},
		{"B200", MemoryAttributes{0, 0, 1, 1, 10, 0}, Discrete},
		{"RTX 4090", MemoryAttributes{0, 0, 0, 1, 8, 9}, Discrete},
		{"RTX 5090", MemoryAttributes{0, 0, 1, 1, 12, 0}, Discrete},
		{"V100", MemoryAttributes{0, 0, 0, 1, 7, 0}, Discrete},
		{"nothing known", MemoryAttributes{-1, -1, -1, -1, 0, 0}, Discrete},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			if got := ClassifyDeviceMemory(tt.a); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	for _, wrong := range []struct {
		name string
		rule func(MemoryAttributes) MemoryClass
	}{
		{"by unified addressing", func(a MemoryAttributes) MemoryClass { return pick(a.UnifiedAddressing == 1, Integrated, Discrete) }},
		{"by pageable access", func(a MemoryAttributes) MemoryClass {
			return pick(a.Integrated == 1, Integrated, pick(a.PageableAccess == 1, Coherent, Discrete))
		}},
		{"by compute capability 10", func(a MemoryAttributes) MemoryClass {
			return pick(a.Major >= 10 && a.UnifiedAddressing == 1, Integrated, pick(a.UsesHostPageTables == 1, Coherent, Discrete))
		}},
		{"host page tables first", func(a MemoryAttributes) MemoryClass {
			return pick(a.UsesHostPageTables == 1, Coherent, pick(a.Integrated == 1, Integrated, Discrete))
		}},
		{"unknown counts as yes", func(a MemoryAttributes) MemoryClass {
			return pick(a.Integrated != 0, Integrated, pick(a.UsesHostPageTables != 0, Coherent, Discrete))
		}},
	} {
		caught := false
		for _, tt := range tests {
			caught = caught || wrong.rule(tt.a) != tt.want
		}
		if !caught {
			t.Errorf("the table above does not tell the rule from one %s", wrong.name)
		}
	}
}

func pick(yes bool, a, b MemoryClass) MemoryClass {
	if yes {
		return a
	}
	return b
}

// TestMemoryAttributesOf: each attribute comes from its own field.
func TestMemoryAttributesOf(t *testing.T) {
	got := MemoryAttributesOf(driver.DeviceInfo{Integrated: 2, PageableUsesHostTables: 3, PageableAccess: 4, UnifiedAddressing: 5, Major: 6, Minor: 7, ManagedMemory: 8, ConcurrentManaged: 9})
	if want := (MemoryAttributes{2, 3, 4, 5, 6, 7}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestAllocationRuleTotal is harness verify_env_override_precedence: every value of MANAGED_MEMORY by every class.
func TestAllocationRuleTotal(t *testing.T) {
	const managed, plain, refused = "managed", "plain", "refused"
	want := map[string][3]string{ // of integrated, coherent, discrete
		"unset": {managed, plain, plain}, "": {managed, plain, plain}, "auto": {managed, plain, plain},
		"0": {plain, plain, plain}, "1": {managed, managed, managed},
		"2": {refused, refused, refused}, "x": {refused, refused, refused},
	}
	cases := 0
	for value, row := range want {
		for i, class := range []MemoryClass{Integrated, Coherent, Discrete} {
			cases++
			t.Run(fmt.Sprintf("%q %s", value, class), func(t *testing.T) {
				contracttest.Cases(t, 1)
				v := value
				if v == "unset" {
					v = "" // os.Getenv of a variable that is not set
				}
				m, err := AllocationRule(class, v)
				got := map[bool]string{true: managed, false: plain}[m]
				if err != nil {
					got = refused
					if fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), "MANAGED_MEMORY") || !strings.Contains(err.Error(), v) {
						t.Errorf("error %v", err)
					}
				}
				if got != row[i] {
					t.Errorf("got %s, want %s", got, row[i])
				}
			})
		}
	}
	if cases != 21 {
		t.Errorf("%d cases, want 21", cases)
	}
}

func TestReadHostMemory(t *testing.T) {
	const gb10 = "MemTotal:       125512000 kB\nMemFree:        1000 kB\nMemAvailable:   121215386 kB\n" +
		"HugePages_Total:      10\nHugePages_Free:        8\nHugePages_Rsvd:        3\nHugePages_Surp:        0\nHugepagesize:       2048 kB\nHugetlb:           20480 kB\n"
	tests := []struct {
		name, text string
		want       HostMemory
		err        string // part of the error
	}{
		{"with huge pages", gb10, HostMemory{121215386 << 10, 5 * 2048 << 10}, ""},
		{"without", "MemAvailable:   1 kB\n", HostMemory{1024, 0}, ""},
		{"no last newline", "MemAvailable:   1 kB", HostMemory{1024, 0}, ""},
		{"empty lines", "\n\nMemAvailable: 2 kB\n\n", HostMemory{2048, 0}, ""},
		{"all pages reserved", "MemAvailable: 2 kB\nHugePages_Free: 3\nHugePages_Rsvd: 4\nHugepagesize: 1 kB\n", HostMemory{2048, 0}, ""},
		{"zero", "MemAvailable: 0 kB", HostMemory{0, 0}, ""},
		{"largest", "MemAvailable: 9007199254740991 kB", HostMemory{9007199254740991 << 10, 0}, ""},
		{"too large", "MemAvailable: 9007199254740992 kB", HostMemory{}, "line 1"},
		{"far too large", "x: 1\nMemAvailable: 99999999999999999999 kB", HostMemory{}, "line 2"},
		{"too many huge pages", "MemAvailable: 1 kB\nHugePages_Free: 9223372036854775807\nHugepagesize: 2 kB", HostMemory{}, "huge pages"},
		{"negative", "MemAvailable: -1 kB", HostMemory{}, "line 1"},
		{"other unit", "MemAvailable: 1 MB", HostMemory{}, "line 1"},
		{"no value", "MemAvailable:", HostMemory{}, "line 1"},
		{"words", "MemAvailable: 1 kB more", HostMemory{}, "line 1"},
		{"not there", "MemTotal: 1 kB\nMemFree: 1 kB\n", HostMemory{}, "MemAvailable"},
		{"empty", "", HostMemory{}, "MemAvailable"},
		{"a line without end", strings.Repeat("x", 1<<20), HostMemory{}, "cannot be read"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadHostMemory(strings.NewReader(tt.text))
			switch {
			case tt.err == "" && (err != nil || got != tt.want):
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || fault.KindOf(err) != fault.Unavailable):
				t.Errorf("got %+v, %v, want an error with %q", got, err, tt.err)
			}
		})
	}
	if _, err := ReadHostMemory(iotest.ErrReader(io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

func FuzzReadHostMemory(f *testing.F) {
	f.Add("MemAvailable: 1 kB\nHugePages_Free: 2\nHugepagesize: 2048 kB\n")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := ReadHostMemory(strings.NewReader(text))
		if err == nil && (h.Available < 0 || h.HugeFree < 0) {
			t.Errorf("negative memory: %+v", h)
		}
	})
}

func TestMemoryBudget(t *testing.T) {
	const gib = int64(1) << 30
	tests := []struct {
		name string
		c    MemoryClass
		free int64
		h    HostMemory
		want Budget
	}{
		{"GB10, a tenth", Integrated, 41 * gib, HostMemory{Available: 110 * gib, HugeFree: 10 * gib}, Budget{108 * gib, 120 * gib, 12 * gib}},
		{"GB10, full", Integrated, 41 * gib, HostMemory{Available: 40 * gib}, Budget{32 * gib, 40 * gib, 8 * gib}},
		{"both reserves are equal", Integrated, 0, HostMemory{Available: 80 * gib}, Budget{72 * gib, 80 * gib, 8 * gib}},
		{"Jetson, too small", Integrated, 6 * gib, HostMemory{Available: 6 * gib}, Budget{0, 6 * gib, 8 * gib}},
		{"huge pages alone", Integrated, 0, HostMemory{HugeFree: 100 * gib}, Budget{90 * gib, 100 * gib, 10 * gib}},
		{"H200", Discrete, 100 * gib, HostMemory{Available: 5 * gib}, Budget{98 * gib, 100 * gib, 2 * gib}},
		{"24 GB card", Discrete, 23 * gib, HostMemory{Available: 500 * gib}, Budget{22 * gib, 23 * gib, gib}},
		{"full card", Discrete, gib / 2, HostMemory{Available: 500 * gib}, Budget{0, gib / 2, gib}},
		{"GH200", Coherent, 90 * gib, HostMemory{Available: 400 * gib, HugeFree: 5}, Budget{90*gib - 90*gib/50, 90 * gib, 90 * gib / 50}},
		{"no overflow", Integrated, 0, HostMemory{math.MaxInt64, math.MaxInt64}, Budget{math.MaxInt64 - math.MaxInt64/10, math.MaxInt64, math.MaxInt64 / 10}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			if got := MemoryBudget(tt.c, tt.free, tt.h); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
