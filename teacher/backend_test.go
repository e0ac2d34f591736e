package teacher_test

import (
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/teacher"
)

// all enumerates every situation: 4 names × 4 classes of device × quantised × fits. The rule knows a device of any class
// as one.
func all(f func(s teacher.Situation)) (n int) {
	for _, asked := range []teacher.Backend{teacher.Auto, teacher.Cublas, teacher.Q4K, teacher.CPU} {
		for _, class := range []string{"none", "unified", "coherent", "classic"} {
			for _, quantised := range []bool{false, true} {
				for _, fits := range []bool{false, true} {
					f(teacher.Situation{Asked: asked, CUDA: class != "none", Quantised: quantised, Fits: fits})
					n++
				}
			}
		}
	}
	return n
}

// TestRuleIsTotal compares the rule with its table, written as data: every situation has one answer.
func TestRuleIsTotal(t *testing.T) {
	want := func(s teacher.Situation) (teacher.Backend, fault.Kind) {
		name := map[teacher.Backend]string{teacher.Auto: "auto", teacher.Cublas: "cublas", teacher.Q4K: "q4k", teacher.CPU: "cpu"}[s.Asked]
		key := name
		for _, b := range []bool{s.CUDA, s.Quantised, s.Fits} {
			if b {
				key += " 1"
			} else {
				key += " 0"
			}
		}
		for _, row := range []struct { // asked, CUDA, quantised, fits; . is either
			pattern string
			backend teacher.Backend
			kind    fault.Kind
		}{
			{"q4k . 0 .", "", fault.Invalid}, {"q4k 0 1 .", "", fault.Unavailable}, {"q4k 1 1 .", teacher.Q4K, 0},
			{"cublas 0 . .", "", fault.Unavailable}, {"cublas 1 . .", teacher.Cublas, 0},
			{"cpu 0 . .", teacher.CPU, 0}, {"cpu 1 . .", "", fault.Unavailable},
			{"auto 0 . .", teacher.CPU, 0}, {"auto 1 . 1", teacher.Cublas, 0}, {"auto 1 1 0", teacher.Q4K, 0}, {"auto 1 0 0", "", fault.Memory},
		} {
			p, k := strings.Fields(row.pattern), strings.Fields(key)
			match := true
			for i := range p {
				match = match && (p[i] == "." || p[i] == k[i])
			}
			if match {
				return row.backend, row.kind
			}
		}
		t.Fatalf("the table has no row for %s", key)
		return "", 0
	}
	n := all(func(s teacher.Situation) {
		b, kind := want(s)
		got, err := s.Rule()
		if got != b || (err == nil) != (kind == 0) || err != nil && fault.KindOf(err) != kind {
			t.Errorf("%+v: %q, %v; want %q, %v", s, got, err, b, kind)
		}
	})
	contracttest.Cases(t, n)
}

// TestExplicitNamesAreObeyed: what is asked for is that backend or an error, whatever else holds.
func TestExplicitNamesAreObeyed(t *testing.T) {
	n := 0
	all(func(s teacher.Situation) {
		if s.Asked == teacher.Auto {
			return
		}
		n++
		if got, err := s.Rule(); err == nil && got != s.Asked || err != nil && got != "" {
			t.Errorf("%+v: %q, %v", s, got, err)
		}
	})
	contracttest.Cases(t, n)
}

// TestFastest: the fastest wins, but for a smaller one within 5 %.
func TestFastest(t *testing.T) {
	big, small := teacher.Timed{Backend: teacher.Cublas, Bytes: 28 << 30}, teacher.Timed{Backend: teacher.Q4K, Bytes: 17 << 30}
	for _, tt := range []struct {
		name        string
		cublas, q4k float64
		want        teacher.Backend
	}{
		{"the smaller is faster", 0.3, 0.2, teacher.Q4K}, {"equal", 0.2, 0.2, teacher.Q4K}, {"4.9 % slower", 1, 1.049, teacher.Q4K},
		{"5.1 % slower", 1, 1.051, teacher.Cublas}, {"far slower", 0.2, 0.9, teacher.Cublas},
	} {
		big.Seconds, small.Seconds = tt.cublas, tt.q4k
		for _, order := range [][]teacher.Timed{{big, small}, {small, big}} {
			if i, reason := teacher.Fastest(order); order[i].Backend != tt.want || reason == "" {
				t.Errorf("%s: %s (%s), want %s", tt.name, order[i].Backend, reason, tt.want)
			}
		}
	}
	contracttest.Cases(t, 10)
}
