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
	"apr/internal/fault"
	"apr/tensor"
)

// ranks opens world devices, each joined with the others, and calls f for each at the same time. It skips nothing: on
// real cards two are used.
func ranks(t *testing.T, world int, f func(r int, d *cuda.Device, s device.Exchanger) error) []error {
	t.Helper()
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
	t.Setenv("APR_EMULATOR_DEVICES", "8")
	if os.Getenv("APR_CUDA_LIB_DIR") == "" {
		return []int{1, 2} // the cards of a machine
	}
	return []int{1, 2, 3, 8}
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
