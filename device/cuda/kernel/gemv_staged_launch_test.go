package kernel

import (
	"bytes"
	"testing"

	"apr/tensor"
)

// TestGemvStaged: matrices that have room on all multiprocessors, as q, k, v and o of gpt-oss 20b have, are staged by
// launches that fit a thread block and begin early, and of which nothing but copies of W precedes the wait; others are
// left to other kernels.
func TestGemvStaged(t *testing.T) {
	for _, c := range []struct {
		rows, cols, multiprocessors int
		want                        bool
	}{
		{5120, 2880, 132, true}, {2880, 4096, 132, true}, {257, 8, 132, true},
		{5120, 2880, 114, false}, {201088, 2880, 132, false}, // no room
		{132*64 + 1, 8, 132, false}, {2880, 4104, 132, false}, {2880, 4092, 132, false}, // rows, columns
		{256, 2880, 132, false},                                           // of a kernel with a block for each row
		{132 * 39, 2914 / 8 * 8, 132, true}, {132 * 28, 4064, 132, false}, // the most bytes, and a few more
	} {
		y, x, w := dense(tensor.BF16, 1, c.rows), dense(tensor.BF16, 1, c.cols), dense(tensor.BF16, c.rows, c.cols)
		if got := GemvStagedServes(y, x, w, c.multiprocessors); got != c.want {
			t.Errorf("%d×%d on %d: %v", c.rows, c.cols, c.multiprocessors, got)
		}
		if !c.want || c.multiprocessors != new(recorder).Multiprocessors() {
			continue
		}
		var r recorder
		checkModules(t, func(q Queue) { GemvStaged(q, y, x, w, Mat{}, false) })
		GemvStaged(&r, y, x, w, Mat{}, false)
		l := Overlap(r.launches[0])
		rows := ceil(c.rows, l.Grid[0])
		if l.Grid[0] > 132 || l.Shared < 2*rows*c.cols || l.Shared+stagedStatic > 227<<10 || l.Block != 32*stagedWarps || !l.Early {
			t.Errorf("%d×%d: %+v", c.rows, c.cols, l)
		}
	}
	w := dense(tensor.BF16, 5120, 2880)
	for name, m := range map[string][3]Mat{
		"float32 y":    {dense(tensor.F32, 1, 5120), dense(tensor.BF16, 1, 2880), w},
		"float32 x":    {dense(tensor.BF16, 1, 5120), dense(tensor.F32, 1, 2880), w},
		"float32 W":    {dense(tensor.BF16, 1, 512), dense(tensor.BF16, 1, 512), dense(tensor.F32, 512, 512)},
		"two rows":     {dense(tensor.BF16, 2, 5120), dense(tensor.BF16, 2, 2880), w},
		"W at 2 bytes": {dense(tensor.BF16, 1, 5120), dense(tensor.BF16, 1, 2880), Mat{1<<30 + 2, 5120, 2880, 2880, tensor.BF16}},
		"rows of W apart": {
			dense(tensor.BF16, 1, 5120), dense(tensor.BF16, 1, 2880), Mat{1 << 30, 5120, 2880, 2888, tensor.BF16},
		},
	} {
		if GemvStagedServes(m[0], m[1], m[2], 132) {
			t.Errorf("%s is served", name)
		}
	}
	_, body, _ := bytes.Cut(PTX(stagedModule), []byte(".entry gemv_staged("))
	before, _, found := bytes.Cut(body, []byte("griddepcontrol.wait"))
	if !found || bytes.Contains(before, []byte("ld.global")) || bytes.Contains(before, []byte("st.global")) {
		t.Error("memory of others is touched before the wait")
	}
}
