package kernel

import (
	"bytes"
	"slices"
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestOverlap: what generation of one position launches has a twin that begins early, of which every instruction that may
// see another kernel's memory follows its wait; what training launches stays.
func TestOverlap(t *testing.T) {
	var r recorder
	w := []Blocks{NewBlocks(1<<32, 64, 512, tensor.Q4_K), NewBlocks(1<<33, 64, 512, tensor.Q6_K)}
	x := dense(tensor.BF16, 1, 512)
	GemvParts(&r, dense(tensor.BF16, 1, 128), x, w, Mat{}, false)
	GemvSwiGLU(&r, dense(tensor.BF16, 1, 64), dense(tensor.BF16, 1, 128), x, w[0], w[0], false)
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4} {
		Gemv(&r, dense(tensor.F32, 1, 64), x, NewBlocks(1<<32, 64, 512, d), Mat{}, false)
	}
	RMSNorm(&r, x, Mat{}, Mat{}, x, Mat{}, dense(tensor.F32, 1, 512), 1e-6)
	RMSNorm(&r, x, Mat{}, x, x, x, dense(tensor.F32, 1, 512), 1e-6)
	Copy(&r, x, dense(tensor.BF16, 1, 512))
	Rotate(&r, x, device.Rotary{HeadDim: 64, Table: frequencies(1e4, 64), SeqLen: 1}, RotaryTables{Table: 1 << 20})
	Attention(&r, x, Mat{}, x, x, x, device.Attn{Batch: 1, QLen: 1, KLen: 1, KStride: 1, Heads: 8, KVHeads: 8, HeadDim: 64}, Mat{})
	ArgMax(&r, dense(tensor.I32, 1, 1), dense(tensor.F32, 1, 2), dense(tensor.F32, 1, 151665))
	for _, d := range []tensor.DType{tensor.BF16, tensor.F32} {
		GemvPlain(&r, dense(tensor.F32, 1, 64), x, dense(d, 64, 512), Mat{}, false)
	}
	ids := dense(tensor.I32, 8, 1)
	routing := Routing{Experts: 64, Active: 8, Chosen: ids, Slots: ids, Rows: ids, Starts: dense(tensor.I32, 65, 1)}
	Route(&r, dense(tensor.F32, 1, 8), dense(tensor.F32, 1, 64), Mat{}, routing)
	for d := range pairTypes {
		e := Experts{Blocks: NewBlocks(1<<32, 64*512, 512, d)}
		ExpertsGatedRows(&r, dense(tensor.BF16, 8, 512), x, e, e, Mat{}, Mat{}, device.SiLU, routing)
		ExpertsMixRows(&r, x, dense(tensor.BF16, 8, 512), e, Mat{}, dense(tensor.F32, 1, 8), routing, false)
	}
	norm := Normed{Y: x, X: dense(tensor.BF16, 1, 512), W: dense(tensor.F32, 1, 512), Eps: 1e-6}
	Router(&r, dense(tensor.F32, 1, 8), dense(tensor.F32, 1, 64), norm, dense(tensor.BF16, 64, 512), Mat{}, Mat{}, routing)
	rotary := device.Rotary{HeadDim: 64, Table: frequencies(1e4, 64), SeqLen: 1}
	kv, all := dense(tensor.BF16, 1, 256), dense(tensor.BF16, 1, 768)
	Finish(&r, x, Mat{}, kv, Mat{}, all, Mat{}, Mat{}, 64, 1e-6, rotary, RotaryTables{Table: 1 << 20, Rows: 1})
	Conv(&r, dense(tensor.BF16, 1, 8192), dense(tensor.BF16, 1, 8192), dense(tensor.F32, 8192, 4), Mat{}, Mat{}, Mat{}, device.Sequences{Batch: 1, Len: 1})
	HeadNorm(&r, x, Mat{}, x, dense(tensor.F32, 1, 128), 128, 1e-6)
	deltaStep(&r, tensor.BF16)
	GLU(&r, dense(tensor.BF16, 1, 256), x, device.Sigmoid)
	addSinks(&r, x, Mat{}, dense(tensor.F32, 1, 8), dense(tensor.F32, 1, 8), 64)
	for _, d := range []int{64, 128, 256} {
		paged := device.Paged{Heads: 512 / d, KVHeads: 512 / d, HeadDim: d, Most: 1}
		AttendPages(&r, x, x, x, x, ids, dense(tensor.I32, 1, 1), dense(tensor.I32, 1, 1), Mat{}, paged)
	}
	seen := map[string]bool{}
	for _, l := range r.launches {
		e := Overlap(l)
		if !e.Early || e.Module != EarlyModule || e.Kernel != l.Kernel+"_early" || e.Args != l.Args || e.Shared != l.Shared {
			t.Errorf("%s became %s of %s", l.Kernel, e.Kernel, e.Module)
		}
		if !slices.ContainsFunc(Modules(), func(m Module) bool { return m.Name == l.Module && slices.Contains(m.Kernels, l.Kernel) }) {
			t.Errorf("no module %s with %s", l.Module, l.Kernel)
		}
		seen[e.Kernel] = true
	}
	for _, k := range twins() {
		if !seen[k] {
			t.Errorf("nothing launches %s", k)
		}
		_, body, _ := bytes.Cut(PTX(EarlyModule), []byte(".entry "+k+"("))
		body, _, _ = bytes.Cut(body, []byte(".entry "))
		before, _, found := bytes.Cut(body, []byte("griddepcontrol.wait"))
		if !found || bytes.Contains(before, []byte("ld.global")) || bytes.Contains(before, []byte("st.global")) {
			t.Errorf("%s touches memory before it waits", k)
		}
	}
	var training recorder
	many := dense(tensor.BF16, 4096, 512)
	RMSNorm(&training, many, Mat{}, Mat{}, many, Mat{}, dense(tensor.F32, 1, 512), 1e-6)
	Gemv(&training, dense(tensor.F32, 2, 64), dense(tensor.BF16, 2, 512), w[0], Mat{}, false)
	Copy(&training, many, many)
	Rotate(&training, many, device.Rotary{HeadDim: 64, Table: frequencies(1e4, 64), SeqLen: 4096}, RotaryTables{Table: 1 << 20})
	Conv(&training, many, dense(tensor.BF16, 4096, 512), dense(tensor.F32, 512, 4), Mat{}, Mat{}, Mat{}, device.Sequences{Batch: 1, Len: 4096})
	for _, l := range training.launches {
		if e := Overlap(l); e.Early || e.Kernel != l.Kernel {
			t.Errorf("%s became %s", l.Kernel, e.Kernel)
		}
	}
}
