package near

import (
	"math"
	"strings"
	"testing"
)

func TestMeasures(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	type measure func(string, []float64, []float64, float64) error
	abs, rel, l2 := measure(Abs[float64, float64]), measure(Rel[float64, float64]), measure(L2[float64, float64])
	tests := []struct {
		name      string
		check     measure
		got, want []float64
		tol       float64
		fails     string // part of the message; empty: passes
	}{
		{"abs equal", abs, []float64{1, 2}, []float64{1, 2}, 0, ""},
		{"abs at the tolerance", abs, []float64{1.5}, []float64{1}, 0.5, ""},
		{"abs beyond", abs, []float64{1, 2.6, 3.55}, []float64{1, 2, 3}, 0.5, "[1] of 3"},
		{"abs length", abs, []float64{1}, []float64{1, 2}, 1, "1 values, want 2"},
		{"abs nan got", abs, []float64{nan}, []float64{1}, 1e300, "not finite"},
		{"abs nan both", abs, []float64{nan}, []float64{nan}, 1, "not finite"},
		{"abs inf both", abs, []float64{inf}, []float64{inf}, 1, "not finite"},
		{"nan tolerance", abs, []float64{1}, []float64{1}, nan, "no tolerance"},
		{"negative tolerance", abs, []float64{1}, []float64{1}, -1, "no tolerance"},
		{"infinite tolerance", abs, []float64{1}, []float64{1}, inf, "no tolerance"},
		{"empty", abs, nil, nil, 0, ""},
		{"rel large", rel, []float64{100.5, 0}, []float64{100, 0}, 0.005, ""},
		{"rel small beside large", rel, []float64{100, 0.5}, []float64{100, 0}, 0.01, ""},
		{"rel beyond", rel, []float64{100, 0.8}, []float64{100, 0}, 0.01, "[1] of 2"},
		{"rel zeros", rel, []float64{1e-300, 0}, []float64{0, 0}, 1, "[0] of 2"},
		{"l2 within", l2, []float64{3, 4.04}, []float64{3, 4}, 0.01, ""},
		{"l2 beyond", l2, []float64{3, 4.1}, []float64{3, 4}, 0.01, "worst at [1]"},
		{"l2 zeros", l2, []float64{1e-300}, []float64{0}, 1, "worst at [0]"},
		{"l2 nan", l2, []float64{nan}, []float64{1}, 1, "not finite"},
		{"l2 does not overflow", l2, []float64{1e200, 1e200}, []float64{1e200, 1e200}, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.check("x", tt.got, tt.want, tt.tol)
			switch {
			case tt.fails == "" && err != nil:
				t.Errorf("got %v, want success", err)
			case tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)):
				t.Errorf("got %v, want an error with %q", err, tt.fails)
			}
		})
	}
}

// recorder notes whether a check failed it.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()      {}
func (r *recorder) Error(...any) { r.failed = true }

func TestCheckFailsTheTest(t *testing.T) {
	for name, check := range map[string]func(testing.TB, string, []float32, []float64, float64){
		"Check": Check[float32, float64], "CheckRel": CheckRel[float32, float64], "CheckL2": CheckL2[float32, float64],
	} {
		var good, bad recorder
		check(&good, "x", []float32{1}, []float64{1}, 0)
		check(&bad, "x", []float32{1}, []float64{2}, 0.1)
		if good.failed || !bad.failed {
			t.Errorf("%s: failed %v on equal values and %v on different ones", name, good.failed, bad.failed)
		}
	}
}
