//go:build emulate || gpu

package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/fault"
	"apr/tensor"
)

// paired opens two devices and pairs them; the first gives.
func paired(t *testing.T) [2]*cuda.Device {
	t.Helper()
	severalDevices(t)
	needDevices(t, 2)
	var d [2]*cuda.Device
	for i := range d {
		d[i] = open(t, cuda.Options{Index: i})
		t.Cleanup(func() { d[i].Close() })
	}
	id, err := d[0].GroupID()
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range d {
		wg.Go(func() { errs[i] = d[i].Pair(1-i, i == 0, id) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return d
}

// What passes from one device to another arrives bit for bit, in order, in both types.
func TestPass(t *testing.T) {
	d := paired(t)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range d {
		wg.Go(func() {
			s := d[i].NewStream().(device.Passer)
			for n, kind := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F32} {
				x := s.Temp("x", device.Activations, kind, 3+n, 64)
				want := rankValues(n, (3+n)*64)
				for k := range want {
					want[k] = tensor.BF16ToF32(tensor.F32ToBF16(want[k]))
				}
				if i == 0 {
					s.Upload(x, want)
					s.Pass(1, x)
				} else {
					s.Receive(0, x)
					got := make([]float32, len(want))
					if errs[i] = s.Download(got, x); errs[i] != nil {
						return
					}
					if !slices.Equal(got, want) {
						errs[i] = fmt.Errorf("tensor %d arrives as another one", n)
					}
				}
				s.Release(x)
			}
			_, err := s.Wait(context.Background())
			errs[i] = errors.Join(errs[i], err)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// A device that waits for what another one will never pass ends when that rank is lost, with the cause.
func TestPartEndsPairs(t *testing.T) {
	d := paired(t)
	s := d[1].NewStream().(device.Passer)
	x := s.Temp("x", device.Activations, tensor.F32, 2, 64)
	done := make(chan error)
	go func() {
		s.Receive(0, x)
		_, err := s.Wait(context.Background())
		done <- err
	}()
	d[1].Part(fault.New(fault.Stopped, "rank 0 of 2 is gone"))
	if err := <-done; err == nil || !strings.Contains(err.Error(), "rank 0 of 2 is gone") {
		t.Errorf("%v, want the cause", err)
	}
}
