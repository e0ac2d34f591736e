package kernel

import (
	"testing"

	"apr/tensor"
)

// TestProjectLaunches: at the sizes of models, and of more rows than one launch has blocks for, every row is projected
// once by launches that a device accepts.
func TestProjectLaunches(t *testing.T) {
	for _, c := range []struct{ rows, teacher, cols int }{
		{1024, 151936, 32000}, {8192, 151936, 260000}, {1, 1, 1}, {projectMost + 5, 1000, 300}, {0, 10, 10}, {10, 10, 0},
	} {
		w := Projection{
			Teacher: c.teacher, Starts: dense(tensor.I32, 1, c.cols+1), IDs: dense(tensor.I32, 1, c.teacher),
			Weights: dense(tensor.F32, 1, c.teacher),
		}
		var r recorder
		y, z := dense(tensor.F32, c.rows, c.cols), dense(tensor.F32, c.rows, c.teacher)
		Project(&r, y, z, w, dense(tensor.I32, c.rows, 1), 2)
		read, written := 0, 0
		for _, l := range r.launches {
			if !hasKernel(t, l.Module, l.Kernel) || min(l.Grid[0], l.Grid[1], l.Grid[2]) < 1 || l.Grid[1] > mostGroups {
				t.Errorf("%+v: %s of %s has grid %v", c, l.Kernel, l.Module, l.Grid)
			}
			n := int((*projectArgs)(l.Args).n)
			switch {
			case l.Kernel == "project_rows" && l.Grid[0] == n:
				read += n
			case l.Grid[0] == ceil(c.cols, projectThreads) && l.Grid[1] == ceil(n, projectRows):
				written += n
			}
		}
		want := c.rows
		if c.cols == 0 {
			want = 0
		}
		if read != want || written != want || r.scratch > MaxScratch {
			t.Errorf("%+v: %d rows read, %d written, %d bytes of scratch", c, read, written, r.scratch)
		}
	}
}
