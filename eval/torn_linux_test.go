package eval_test

import (
	"context"
	"testing"

	"apr/eval"
	"apr/internal/contracttest"
)

// torn counts how often a method gets an object of another type than its own: a goroutine writes an interface, two words, while
// another one calls by it.
const torn = `
type iface interface{ own() bool }
type one struct{ v int }
type two struct{ v int }

func (x *one) own() bool { return x.v == 1 }
func (x *two) own() bool { return x.v == 2 }

var box iface

//go:noinline
func set(y iface) { box = y }

func answer() int {
	stop, done, wrong := false, make(chan bool), 0
	var a, b iface = &one{1}, &two{2}
	set(a)
	go func() {
		for i := 0; i < 100_000_000 && !stop; i++ {
			set(a)
			set(b)
		}
		done <- true
	}()
	for i := 0; i < 10_000_000 && wrong == 0; i++ {
		if !box.own() {
			wrong++
		}
	}
	stop = true
	<-done
	return wrong
}
`

// A Go program cannot make a pointer to its tests of half an interface.
func TestNoTornInterface(t *testing.T) {
	runner := programs(t, []eval.Problem{{Language: "go"}})
	if runner == nil {
		return
	}
	contracttest.Cases(t, 1)
	p := eval.Problem{Language: "go", Style: "code", Test: "func check() {\n\tif n := answer(); n != 0 {\n\t\tpanic(n)\n\t}\n}\n"}
	if passed, why, err := runner.Passes(context.Background(), p, torn); err != nil || !passed {
		t.Errorf("passed=%v, %q (%v)", passed, why, err)
	}
}
