package contracttest_test

import (
	"io"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// recorder is a test that keeps what it is told.
type recorder struct {
	testing.TB
	out    strings.Builder
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Name() string          { return "TestX/y" }
func (r *recorder) Output() io.Writer     { return &r.out }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; panic(r) }

func TestCases(t *testing.T) {
	tests := []struct {
		name string
		n    int
		want string // empty: the test fails
	}{
		{"some", 3, "APR-CASES TestX/y 3\n"},
		{"none", 0, ""},
		{"fewer than none", -1, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{TB: t}
			func() {
				defer func() {
					if p := recover(); p != nil && p != any(r) {
						panic(p)
					}
				}()
				contracttest.Cases(r, tt.n)
			}()
			if r.out.String() != tt.want || r.failed != (tt.want == "") {
				t.Errorf("printed %q, failed %v, want %q", r.out.String(), r.failed, tt.want)
			}
		})
	}
}
