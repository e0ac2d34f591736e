//go:build emulate || gpu

package blas

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"apr/device/cuda/driver"
)

// change measures configurations near the best of what is proposed: other clusters, custom options and swizzles of the
// best three tiles, and other tiles and stages of the best.
func (w *sweeper) change(f *field, end time.Time) error {
	if err := w.u.fill(f.shape); err != nil {
		return err
	}
	before := len(f.all)
	best := f.best(f.all)
	earlier := len(best.turns)
	list, err := w.variants(f, time.Now().Add(time.Until(end)/5))
	if err != nil {
		return err
	}
	limit, err := w.u.load(best.call, f.shape, best.short, 0, 5*time.Millisecond)
	if err != nil {
		return err
	}
	screened := time.Now().Add(time.Until(end) * 2 / 5)
	ran := 0
	for _, x := range list {
		if time.Now().After(screened) {
			break
		}
		err := w.screen(f, x, limit)
		if err != nil {
			return err
		}
		if ran++; x.short <= hopelessOther*limit {
			f.all = append(f.all, x)
		}
	}
	fresh := slices.Clone(f.all[before:])
	f.heading = fmt.Sprintf("%d configurations accepted, %d run, %d of them within %.2f of the best", len(list), ran, len(fresh), hopelessOther)
	slices.SortStableFunc(fresh, func(x, y *trial) int { return cmp.Compare(x.short, y.short) })
	room := int(time.Until(end)*2/3/(w.plan.lead+w.plan.timed)) - 1
	err = w.rounds(f, append([]*trial{best}, fresh[:min(len(fresh), max(room, 1))]...), end)
	f.then = (&trial{turns: best.turns[earlier:]}).load()
	return err
}

// screen runs a trial, which loads its code, and then once more or for a millisecond. One that the library refuses stays
// at +Inf.
func (w *sweeper) screen(f *field, x *trial, ms float64) error {
	x.short = math.Inf(1)
	a, b, c, _ := f.shape.place(w.u.scratch.Ptr)
	if err := x.call.Start(b, a, c, w.u.s); err != nil {
		var status *driver.LtError
		if !errors.As(err, &status) {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		return w.u.t.StreamSync(w.u.s) // whether the device still works
	}
	if err := w.u.t.StreamSync(w.u.s); err != nil {
		return fmt.Errorf("%s: %w", x.name, err)
	}
	short, err := w.u.load(x.call, f.shape, ms, 0, time.Millisecond)
	x.short = short
	return err
}

// variants returns accepted configurations that are not on trial yet.
func (w *sweeper) variants(f *field, end time.Time) (list []*trial, err error) {
	lt, seen := w.many.lt, map[string]bool{}
	for _, x := range f.all {
		seen[x.name] = true
	}
	try := func(algo driver.LtAlgo, config map[driver.LtConfigAttribute]uint32) error {
		if time.Now().After(end) {
			return nil
		}
		for part, v := range config {
			if lt.SetConfig(&algo, part, v) != nil {
				return nil // not a value of this algorithm
			}
		}
		got, err := lt.Check(w.many.handle, f.c.problem.lt, algo)
		if err != nil || got.Workspace > workspaceBytes {
			return nil
		}
		name, err := lt.Describe(&algo)
		if err != nil || seen[name] {
			return err
		}
		seen[name] = true
		list = append(list, &trial{name: name, from: "x", algo: algo, call: w.callOf(f, algo)})
		return nil
	}
	bases, err := w.bases(f)
	if err != nil {
		return nil, err
	}
	if err := w.tiles(bases[0].algo, try); err != nil {
		return nil, err
	}
	for _, base := range bases {
		if err := w.options(base.algo, try); err != nil {
			return nil, err
		}
	}
	return list, nil
}

type tryFunc func(driver.LtAlgo, map[driver.LtConfigAttribute]uint32) error

// tiles tries all tiles and stages.
func (w *sweeper) tiles(algo driver.LtAlgo, try tryFunc) error {
	tiles, err := w.many.lt.Capability(&algo, driver.LtTiles)
	if err != nil {
		return err
	}
	stages, err := w.many.lt.Capability(&algo, driver.LtStageIDs)
	if err != nil {
		return err
	}
	for _, tile := range tiles {
		for _, stage := range stages {
			if err := try(algo, map[driver.LtConfigAttribute]uint32{driver.LtTile: tile, driver.LtStages: stage}); err != nil {
				return err
			}
		}
	}
	return nil
}

// options tries all clusters, custom options and swizzles.
func (w *sweeper) options(algo driver.LtAlgo, try tryFunc) error {
	custom, err := w.many.lt.Capability(&algo, driver.LtCustomMax)
	if err != nil {
		return err
	}
	swizzles, err := w.many.lt.Capability(&algo, driver.LtSwizzling)
	if err != nil {
		return err
	}
	const clusters = 40 // numbers of cublasLtClusterShape_t, and some beyond
	for option := range min(custom[0], 64) + 1 {
		for cluster := range uint32(clusters) {
			for swizzle := range min(swizzles[0], 1) + 1 {
				config := map[driver.LtConfigAttribute]uint32{driver.LtCustom: option, driver.LtCluster: cluster, driver.LtSwizzle: swizzle}
				if err := try(algo, config); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// bases returns the best three that differ in algorithm, tile or stages, the best first.
func (w *sweeper) bases(f *field) (list []*trial, err error) {
	all := slices.DeleteFunc(slices.Clone(f.all), func(x *trial) bool { return len(x.turns) == 0 })
	slices.SortStableFunc(all, func(x, y *trial) int { return cmp.Compare(x.load(), y.load()) })
	seen := map[[3]uint32]bool{}
	for _, x := range all {
		var key [3]uint32
		for i, part := range []driver.LtConfigAttribute{driver.LtAlgoID, driver.LtTile, driver.LtStages} {
			if key[i], err = w.many.lt.Config(&x.algo, part); err != nil {
				return nil, err
			}
		}
		if !seen[key] && len(list) < 3 {
			seen[key], list = true, append(list, x)
		}
	}
	return list, nil
}

func (w *sweeper) callOf(f *field, algo driver.LtAlgo) *driver.LtCall {
	c := *f.c
	c.list = []driver.LtCandidate{{Algo: algo}}
	return w.u.call(&c, 0)
}
