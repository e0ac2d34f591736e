package kernel

import (
	"testing"

	"apr/tensor"
)

// TestProjectLaunches: at the sizes of models, every row is projected once by launches that a device accepts, within
// scratch.
func TestProjectLaunches(t *testing.T) {
	for _, c := range []struct{ rows, teacher, cols int }{
		{1024, 151936, 32000}, {8192, 151936, 260000}, {1, 1, 1}, {1000005, 3, 300}, {20, ProjectMost, 10}, {0, 10, 10},
		{10, 10, 0},
	} {
		w := Projection{
			Teacher: c.teacher, Starts: dense(tensor.I32, 1, c.cols+1), IDs: dense(tensor.I32, 1, c.teacher),
			Weights: dense(tensor.F32, 1, c.teacher),
		}
		var r recorder
		y, z := dense(tensor.F32, c.rows, c.cols), dense(tensor.F32, c.rows, c.teacher)
		Project(&r, y, z, w, dense(tensor.I32, c.rows, 1), 2)
		rows := map[string]int{}
		for _, l := range r.launches {
			if !hasKernel(t, l.Module, l.Kernel) || min(l.Grid[0], l.Grid[1], l.Grid[2]) < 1 || l.Grid[1] > mostGroups {
				t.Errorf("%+v: %s of %s has grid %v", c, l.Kernel, l.Module, l.Grid)
			}
			n := int((*projectArgs)(l.Args).n)
			grids := map[string][3]int{
				"project_turn":    {ceil(c.teacher, projectSlice), ceil(n, projectRows), 1},
				"project_states":  {ceil(n, projectRows), 1, 1},
				"project_columns": {ceil(c.cols, projectThreads), ceil(n, projectRows), 1},
			}
			if l.Grid == grids[l.Kernel] {
				rows[l.Kernel] += n
			}
		}
		want := c.rows
		if c.cols == 0 {
			want = 0
		}
		for _, k := range []string{"project_turn", "project_states", "project_columns"} {
			if rows[k] != want {
				t.Errorf("%+v: %s takes %d rows", c, k, rows[k])
			}
		}
		if r.scratch > MaxScratch {
			t.Errorf("%+v: %d bytes of scratch", c, r.scratch)
		}
	}
}
