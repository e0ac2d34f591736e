package cluster

import (
	"math"
	"path/filepath"
	"testing"

	"apr/internal/contracttest"
)

func read(t *testing.T, name string) *File {
	t.Helper()
	f, err := Read(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestMeasuredPair holds the simulation to what PyTorch DDP and apr measured on one and two H200, within 5 %.
func TestMeasuredPair(t *testing.T) {
	for _, tt := range []struct {
		file string
		want [2]float64 // tokens a second of 1 and 2 GPUs
	}{
		{"testdata/ddp-7b.yaml", [2]float64{29273, 57958}},
		{"testdata/ddp-1.5b.yaml", [2]float64{65076, 125181}},
		{"testdata/apr-7b.yaml", [2]float64{33776, 66075}},
		{"testdata/apr-1.5b.yaml", [2]float64{79874, 151043}},
		{"testdata/apr-7b-overlap.yaml", [2]float64{33511, 66555}},
		{"testdata/apr-1.5b-overlap.yaml", [2]float64{79285, 155956}},
	} {
		p := read(t, tt.file).Simulate([]int{1, 2}, 1<<22)
		for i, want := range tt.want {
			got := p.Rows[i].TokensPerSecond
			off := got/want - 1
			t.Logf("%s, %d GPUs: %.0f tokens/s, measured %.0f (%+.1f %%), %.2f ms exposed", tt.file, i+1, got, want, 100*off,
				p.Rows[i].ExposedMS)
			if !(math.Abs(off) <= 0.05) {
				t.Errorf("%s, %d GPUs: %.0f tokens/s are not within 5 %% of %.0f", tt.file, i+1, got, want)
			}
		}
	}
	contracttest.Cases(t, 12)
}

// TestPublishedEffectiveTime holds it to Llama 3's > 90 % with one interruption in 2.8 hours of 16,384 GPUs.
func TestPublishedEffectiveTime(t *testing.T) {
	f := read(t, "testdata/llama3.yaml")
	r := f.Simulate([]int{16384}, 1<<25).Rows[0]
	t.Logf("%+v", r)
	if between := r.Hours / r.Interruptions; !(math.Abs(between/2.8-1) < 0.05) {
		t.Errorf("an interruption in %.2f hours, want 2.8", between)
	}
	if !(r.Effective > 0.90 && r.Effective < 0.95) {
		t.Errorf("%.2f %% of the time are effective", 100*r.Effective)
	}
	f.Checkpoints.Every = 3600
	if rare := f.Simulate([]int{16384}, 1<<25).Rows[0].Effective; !(rare < 0.85) {
		t.Errorf("with a checkpoint an hour %.2f %% are effective", 100*rare)
	}
	contracttest.Cases(t, 2)
}
