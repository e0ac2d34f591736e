//go:build emulate || gpu

package cuda_test

import (
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/tensor"
)

// TestHostExperts: products with stacks that come from the host have the bits of those with stacks on the device, used
// in the order of loading, in another one, and again; what is fetched is what is used and not there, and the plan has
// the memory to the byte.
func TestHostExperts(t *testing.T) {
	findDriver(t)
	for _, sm90 := range []bool{false, true} {
		d := open(t, cuda.Options{})
		if sm90 {
			d.Close()
			d = hopper(t, cuda.Options{})
		}
		m, n := newMany(t, tensor.Q4_K), newMany(t, tensor.Q8_0)
		sources := []device.Source{m.source, n.source, m.source}
		rec := dry.New(d.Target())
		for _, src := range sources {
			if _, err := rec.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}, Experts: m.experts, Form: device.Form{Blocks: true, HostExperts: true}}); err != nil {
				t.Fatal(err)
			}
		}
		plan := rec.Record()
		before := d.Stats().Allocated
		if err := d.Prepare(plan); err != nil {
			t.Fatal(err)
		}
		taken := d.Stats().Allocated - before
		if q8 := int64(len(n.source.bytes)); taken != 2*((q8+255)/256*256) || taken != plan.Staging || plan.Host != 2*int64(len(m.source.bytes))+q8 || plan.Static[device.TeacherWeights] != 0 {
			t.Errorf("%d bytes taken, planned %d and %d on the host", taken, plan.Staging, plan.Host)
		}
		s := d.NewStream()
		var host, there []device.Weight
		for i, src := range sources {
			host = append(host, m.weight(t, d, src, device.Form{Blocks: true, HostExperts: true}))
			there = append(there, []many{m, n, m}[i].weight(t, d, src, device.Form{Blocks: true}))
			if host[i].Bytes() != 0 {
				t.Errorf("%d bytes on the device", host[i].Bytes())
			}
		}
		for _, i := range []int{0, 1, 2, 0, 1, 2, 2, 1, 0, 0} {
			a := m.run(s, host[i])
			got := a.download(t, s)
			a.release(s)
			b := m.run(s, there[i])
			want := b.download(t, s)
			b.release(s)
			for k := range want {
				if !slices.Equal(got[k], want[k]) {
					t.Errorf("compute capability 9: %v: product %d with stack %d differs", sm90, k, i)
				}
			}
		}
		early(t, d, m, host, there)
		st := d.Stats()
		if st.Fetched < plan.Host || st.Pinned < plan.Host {
			t.Errorf("%d bytes fetched, %d pinned", st.Fetched, st.Pinned)
		}
		if _, err := d.Weight(device.WeightSpec{Name: "w", Parts: []device.Source{m.plain}, Experts: m.experts, Form: device.Form{Blocks: true, HostExperts: true}}); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("experts without blocks: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// early compares products whose stacks are fetched as early as the order of streams allows: the emulator fetches as
// late as possible by itself.
func early(t *testing.T, d *cuda.Device, m many, host, there []device.Weight) {
	t.Helper()
	s := d.NewStream()
	var got []products
	for _, w := range host {
		got = append(got, m.run(s, w))
	}
	if err := d.FinishCopies(); err != nil {
		t.Fatal(err)
	}
	for i, p := range got {
		a := p.download(t, s)
		b := m.run(s, there[i])
		want := b.download(t, s)
		b.release(s)
		p.release(s)
		for k := range want {
			if !slices.Equal(a[k], want[k]) {
				t.Errorf("product %d with stack %d differs where it comes early", k, i)
			}
		}
	}
}
