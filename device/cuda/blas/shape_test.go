package blas

import (
	"errors"
	"fmt"
	"testing"

	"apr/tensor"
)

func ExampleShape_Key() {
	s := Shape{Op: NT, M: 8192, N: 4608, K: 3584, LDA: 3584, LDB: 3584, LDC: 4608, In: tensor.BF16, Out: tensor.BF16, Aligned: true}
	fmt.Println(s.Key())
	s.Op, s.Out, s.Add, s.LDA = TN, tensor.F32, true, 8192
	fmt.Println(s.Key())
	// Output:
	// gemm/nt/8192x4608x3584/bf16
	// gemm/tn/8192x4608x3584/bf16-f32/add/ld8192,3584,4608
}

// dense returns a shape whose rows follow one another.
func dense(op Op, m, n, k int, in, out tensor.DType, c Compute) Shape {
	s := Shape{Op: op, M: m, N: n, K: k, LDC: n, In: in, Out: out, Compute: c, Aligned: true}
	a, b := s.operands()
	s.LDA, s.LDB = a.cols, b.cols
	return s
}

func TestKeyIsIdentity(t *testing.T) {
	base := dense(NT, 8, 16, 32, tensor.BF16, tensor.BF16, BF16)
	f32 := dense(NT, 8, 16, 32, tensor.F32, tensor.F32, F32)
	changed := map[string]Shape{"base": base, "f32": f32}
	add := func(name string, s Shape, f func(*Shape)) { f(&s); changed[name] = s }
	add("op", base, func(s *Shape) { s.Op, s.LDB = NN, 16 })
	add("m", base, func(s *Shape) { s.M++ })
	add("n", base, func(s *Shape) { s.N++; s.LDC++ })
	add("k", base, func(s *Shape) { s.K++; s.LDA++; s.LDB++ })
	add("lda", base, func(s *Shape) { s.LDA++ })
	add("ldb", base, func(s *Shape) { s.LDB++ })
	add("ldc", base, func(s *Shape) { s.LDC++ })
	add("out", base, func(s *Shape) { s.Out = tensor.F32 })
	add("bias", base, func(s *Shape) { s.Bias = true })
	add("add", base, func(s *Shape) { s.Add = true })
	add("odd", base, func(s *Shape) { s.Aligned = false })
	add("tf32", f32, func(s *Shape) { s.Compute = TF32 })
	add("narrowed", f32, func(s *Shape) { s.Out = tensor.BF16 })
	keys := map[string]string{}
	for name, s := range changed {
		if other, ok := keys[s.Key()]; ok {
			t.Errorf("%s and %s have the key %s", name, other, s.Key())
		}
		keys[s.Key()] = name
	}
}

func TestCheck(t *testing.T) {
	base := dense(NT, 8, 16, 32, tensor.BF16, tensor.BF16, BF16)
	for name, f := range map[string]func(*Shape){
		"no rows": func(s *Shape) { s.M = 0 }, "no columns": func(s *Shape) { s.N = 0 }, "nothing inside": func(s *Shape) { s.K = 0 },
		"huge stride": func(s *Shape) { s.LDA = 1 << 31 },
	} {
		s := base
		f(&s)
		if err := s.check(); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, f := range map[string]func(*Shape){
		"short rows of a": func(s *Shape) { s.LDA-- }, "short rows of b": func(s *Shape) { s.LDB-- }, "short rows of c": func(s *Shape) { s.LDC-- },
		"float32 as bf16": func(s *Shape) { s.In = tensor.F32 }, "bf16 as tf32": func(s *Shape) { s.Compute = TF32 },
		"integers": func(s *Shape) { s.Out = tensor.I32 },
	} {
		s := base
		f(&s)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_ = s.check()
		}()
	}
	if err := base.check(); err != nil {
		t.Error(err)
	}
}

func TestPlace(t *testing.T) {
	for _, op := range []Op{NT, NN, TN} {
		for _, aligned := range []bool{true, false} {
			s := dense(op, 33, 7, 65, tensor.BF16, tensor.F32, BF16)
			s.Aligned = aligned
			a, b, c, end := s.place(512)
			ma, mb := s.operands()
			if a+uint64(2*ma.rows*ma.cols) > b || b+uint64(2*mb.rows*mb.cols) > c || c+uint64(4*s.M*s.N) > end || s.bytes() != int64(end)-512 {
				t.Errorf("%s: operands overlap: %d %d %d %d", s.Key(), a, b, c, end)
			}
			if AlignedAt(a, b, c) != aligned || a%2 != 0 || b%2 != 0 || c%4 != 0 {
				t.Errorf("%s: wrong alignment: %d %d %d", s.Key(), a, b, c)
			}
		}
	}
}
