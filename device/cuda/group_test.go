//go:build emulate || gpu

package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/tensor"
)

// ranks opens world devices, each joined with the others, and calls f for each at the same time.
func ranks(t *testing.T, world int, f func(r int, d *cuda.Device, s device.Exchanger) error) []error {
	t.Helper()
	needDevices(t, world)
	devices := make([]*cuda.Device, world)
	for r := range devices {
		devices[r] = open(t, cuda.Options{Index: r})
		defer devices[r].Close()
	}
	id, err := devices[0].GroupID()
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, world)
	var wg sync.WaitGroup
	for r, d := range devices {
		wg.Go(func() {
			if errs[r] = d.Join(r, world, id); errs[r] == nil {
				errs[r] = f(r, d, d.NewStream().(device.Exchanger))
			}
		})
	}
	wg.Wait()
	return errs
}

// severalDevices makes the driver have as many devices as the tests want, and returns how many ranks they may have.
func severalDevices(t *testing.T) []int {
	t.Helper()
	findDriver(t)
	if os.Getenv("APR_CUDA_LIB_DIR") == "" {
		return []int{1, 2} // the cards of a machine
	}
	t.Setenv("APR_EMULATOR_DEVICES", "8")
	return []int{1, 2, 3, 8}
}

// needDevices skips a test that needs more GPUs than the machine has, with a text that bench/gputable counts as
// unavailable. The emulator has as many devices as severalDevices asks for, so nothing is skipped there.
func needDevices(t *testing.T, n int) {
	t.Helper()
	if os.Getenv("APR_CUDA_LIB_DIR") != "" {
		return
	}
	names, err := cuda.DeviceNames()
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < n {
		t.Skipf("UNAVAILABLE: needs %d GPUs, this machine has %d", n, len(names))
	}
}

// values of a rank.
func rankValues(r, n int) []float32 {
	rng, x := rand.New(rand.NewPCG(uint64(r), uint64(n))), make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// treeSum adds what ranks [lo,hi) have as a binary tree.
func treeSum(lo, hi, n int) []float32 {
	if hi-lo == 1 {
		return rankValues(lo, n)
	}
	half := 1
	for half*2 < hi-lo {
		half *= 2
	}
	a, b := treeSum(lo, lo+half, n), treeSum(lo+half, hi, n)
	for i := range a {
		a[i] += b[i]
	}
	return a
}

// Sums over the ranks, of several tensors at once, are those of the host's communicators; a pending zero counts.
func TestSumRanks(t *testing.T) {
	for _, world := range severalDevices(t) {
		t.Run(strconv.Itoa(world), func(t *testing.T) {
			for r, err := range ranks(t, world, func(r int, d *cuda.Device, s device.Exchanger) error {
				var ts []device.Tensor
				for i, n := range []int{1, 1000, 300_001} {
					x := d.Alloc(fmt.Sprint("x", i), device.Gradients, tensor.F32, 1, n)
					s.Upload(x, rankValues(r, n))
					ts = append(ts, x)
				}
				owed := d.Alloc("zero", device.Gradients, tensor.F32, 3, 5)
				s.Upload(owed, rankValues(r, 15))
				s.Zero(owed)
				s.SumRanks(false, append(ts, owed)...)
				for i, n := range []int{1, 1000, 300_001} {
					got, want := make([]float32, n), treeSum(0, world, n)
					if err := s.Download(got, ts[i]); err != nil {
						return err
					}
					for k := range got {
						if d := got[k] - want[k]; d > 1e-5 || d < -1e-5 || world <= 2 && d != 0 {
							return fmt.Errorf("element %d of %d: %v, want %v", k, n, got[k], want[k])
						}
					}
				}
				got := make([]float32, 15)
				if err := s.Download(got, owed); err != nil {
					return err
				}
				if !slices.Equal(got, make([]float32, 15)) {
					return fmt.Errorf("the sum of zeros is %v", got)
				}
				return nil
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// Sums as a tree have the bits of the tree, of whole tensors on every rank, and of gradients of the elements that a
// rank keeps: those that one keeps alone, and those that all do.
func treeOfRanks(t *testing.T) {
	t.Helper()
	for _, world := range severalDevices(t) {
		t.Run(strconv.Itoa(world), func(t *testing.T) {
			for r, err := range ranks(t, world, func(r int, d *cuda.Device, s device.Exchanger) error {
				var ts []device.Tensor
				sizes := []int{1, 1000, 300_001}
				for i, n := range sizes {
					x := d.Alloc(fmt.Sprint("x", i), device.Gradients, tensor.F32, 1, n)
					s.Upload(x, rankValues(r, n))
					ts = append(ts, x)
				}
				s.SumRanks(true, ts...)
				for i, n := range sizes {
					got := make([]float32, n)
					if err := s.Download(got, ts[i]); err != nil {
						return err
					}
					if !slices.Equal(got, treeSum(0, world, n)) {
						return fmt.Errorf("the sum of %d elements has other bits", n)
					}
				}
				params := sharedParams(d, r, world)
				for _, p := range params {
					s.Upload(p.Grad, rankValues(r, p.Rows*p.Cols))
				}
				s.ReduceGradients(true, params)
				for i, p := range params {
					n := p.Rows * p.Cols
					got, err := own(s, p)
					if err != nil {
						return err
					}
					want := treeSum(0, world, n)
					lo, hi, tail := p.Share.Own(n)
					if !slices.Equal(got, append(want[lo:hi:hi], want[tail:]...)) || world > 1 && i > 0 && hi == lo {
						return fmt.Errorf("the gradient of parameter %d has other bits", i)
					}
				}
				return nil
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
				contracttest.Cases(t, 1)
			}
		})
	}
}

// A rank that parts ends the group: who waits for it in a sum gets an error instead of waiting for ever, and its own
// cause, if it has one.
func TestPart(t *testing.T) {
	severalDevices(t)
	cause := errors.New("the disk is on fire")
	errs := ranks(t, 2, func(r int, d *cuda.Device, s device.Exchanger) error {
		x := d.Alloc("x", device.Gradients, tensor.F32, 1, 100)
		if r == 1 {
			d.Part(cause)
		}
		s.SumRanks(false, x)
		return s.Download(make([]float32, 100), x)
	})
	if errs[0] == nil || !errors.Is(errs[1], cause) {
		t.Errorf("errors %v", errs)
	}
	errs = ranks(t, 2, func(r int, d *cuda.Device, s device.Exchanger) error { // rank 1 leaves while gradients are being sent
		params := sharedParams(d, r, 2)
		if r == 1 {
			d.Part(cause)
		}
		s.SendGradients(params)
		s.Arrive()
		_, err := own(s, params[1])
		return err
	})
	if errs[0] == nil || !errors.Is(errs[1], cause) {
		t.Errorf("errors %v while gradients were being sent", errs)
	}
}

// Two ranks on one device, and a library that is not there, are refused by name.
func TestJoinRefused(t *testing.T) {
	severalDevices(t)
	if os.Getenv("APR_CUDA_LIB_DIR") == "" {
		return // a real library is there, and hangs when only one of two ranks is refused
	}
	a, b := open(t, cuda.Options{}), open(t, cuda.Options{})
	defer a.Close()
	defer b.Close()
	id, err := a.GroupID()
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for r, d := range []*cuda.Device{a, b} {
		wg.Go(func() { errs[r] = d.Join(r, 2, id) })
	}
	wg.Wait()
	for r, err := range errs {
		if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), fmt.Sprintf("rank %d of 2", r)) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if err := a.Join(0, 2, id[:7]); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a short id: %v", err)
	}
}

// shared are parameters of this rank, one of which ranks share, with room to spare.
func sharedParams(d *cuda.Device, r, world int) []*device.Param {
	d.KeepShare(device.Share{Rank: r, World: world})
	var all []*device.Param
	for i, rows := range []int{1, 8*2*world + 3, 8 * world} {
		all = append(all, d.Param(device.ParamSpec{Name: fmt.Sprint("p", i), Rows: rows, Cols: 2048, Share: d.Share()}))
	}
	return all
}

// own returns the elements of a gradient that this rank keeps.
func own(s device.Stream, p *device.Param) ([]float32, error) {
	n := p.Rows * p.Cols
	x := make([]float32, n)
	err := s.Download(x, p.Grad)
	lo, hi, tail := p.Share.Own(n)
	return append(x[lo:hi:hi], x[tail:]...), err
}

// Gradients that are sent in pieces, beside other operations and late products of their own stream, are the sums that
// ReduceGradients makes of all at once; so are they with nothing beside. One that is owed zeros sends zeros.
func TestSendGradients(t *testing.T) {
	for _, overlap := range []string{"1", "0"} {
		for _, world := range severalDevices(t)[1:] { // above one
			t.Run(fmt.Sprint(overlap, " ", world), func(t *testing.T) {
				t.Setenv(cuda.OverlapVariable, overlap)
				for r, err := range ranks(t, world, func(r int, d *cuda.Device, s device.Exchanger) error {
					params := sharedParams(d, r, world)
					fill := func() {
						for i, p := range params[:2] {
							s.Upload(p.Grad, rankValues(r+100*i, p.Rows*p.Cols))
							s.Scale(p.Grad, p.Grad, 0.5) // the device has not done this yet when it is sent
						}
						s.Zero(params[2].Grad)
					}
					var want, got [][]float32
					read := func(to *[][]float32) error {
						for _, p := range params {
							x, err := own(s, p)
							if err != nil {
								return err
							}
							*to = append(*to, x)
						}
						return nil
					}
					fill()
					s.ReduceGradients(false, params)
					if err := read(&want); err != nil {
						return err
					}
					fill()
					other := d.Alloc("other", device.Gradients, tensor.F32, 64, 64)
					s.SendGradients(params[1:2])
					s.Scale(other, other, 2)
					s.SendGradients([]*device.Param{params[2], params[0]})
					s.Scale(other, other, 2)
					s.Arrive()
					s.Arrive() // of nothing
					if err := read(&got); err != nil {
						return err
					}
					for i := range want {
						if !slices.Equal(got[i], want[i]) {
							return fmt.Errorf("the sums of parameter %d differ", i)
						}
					}
					if n := len(want[1]); n >= params[1].Rows*params[1].Cols || slices.Max(want[1]) == 0 || slices.Max(want[2]) != 0 {
						return fmt.Errorf("%d elements are compared", n)
					}
					return nil
				}) {
					if err != nil {
						t.Errorf("rank %d: %v", r, err)
					}
				}
			})
		}
	}
}

// Whoever reads a weight that is gathered gets the others' elements, though nobody waited for it.
func TestGatherWeights(t *testing.T) {
	for _, world := range severalDevices(t)[1:] { // above one
		t.Run(strconv.Itoa(world), func(t *testing.T) {
			for r, err := range ranks(t, world, func(r int, d *cuda.Device, s device.Exchanger) error {
				for _, p := range sharedParams(d, r, world) {
					n := p.Rows * p.Cols
					mine := make([]float32, n)
					for i := range mine {
						mine[i] = float32(r + 1)
					}
					s.Upload(p.Staging(device.OfValue), mine)
					s.RefreshWeight(p)
					s.GatherWeights([]*device.Param{p})
					s.Widen(p)
					got := make([]float32, n)
					if err := s.Download(got, p.Grad); err != nil {
						return err
					}
					for i, v := range got {
						want := float32(r + 1)
						for o := range world {
							if lo, hi, _ := (device.Share{Rank: o, World: world}).Own(n); i >= lo && i < hi {
								want = float32(o + 1)
							}
						}
						if v != want {
							return fmt.Errorf("element %d of %s: %v, want %v", i, p.Name, v, want)
						}
					}
				}
				return nil
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// A gradient that was sent before it was complete is found by the operation that would add to it.
func TestSentTooEarly(t *testing.T) {
	severalDevices(t)
	for r, err := range ranks(t, 2, func(r int, d *cuda.Device, s device.Exchanger) (err error) {
		p := sharedParams(d, r, 2)[1]
		s.SendGradients([]*device.Param{p})
		for name, f := range map[string]func(){
			"zero": func() { s.Zero(p.Grad) }, "scale": func() { s.Scale(p.Grad, p.Grad, 2) },
			"again": func() { s.SendGradients([]*device.Param{p}) },
			"norm":  func() { s.Verdict([]*device.Param{p}) },
		} {
			func() {
				defer func() {
					text := fmt.Sprint(recover())
					if !strings.Contains(text, "p1.grad was sent to the other ranks before it was complete") {
						err = errors.Join(err, fmt.Errorf("%s: %s", name, text))
					}
				}()
				f()
			}()
		}
		s.Arrive()
		s.Zero(p.Grad)
		_, e := own(s, p)
		return errors.Join(err, e)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
