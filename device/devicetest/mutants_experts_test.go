package devicetest

import (
	"slices"

	"apr/device"
	"apr/internal/ref"
)

// expertMutants are mistakes in mixtures of experts.
var expertMutants = []mutant{
	{"routing weights not renormalised", "route/", withRouting(func(r *device.Routing) { r.Renorm = false })},
	{"routing weights always renormalised", "route/", withRouting(func(r *device.Routing) { r.Renorm = true })},
	{"routing weights not scaled", "route/", func(o *ops) {
		o.experts.route = func(z, _ ref.Mat, chosen []int, r device.Routing) ref.Mat { return ref.Route(z, ref.Mat{}, chosen, r) }
	}},
	{"scale of the expert's place, not of the expert", "route/", func(o *ops) {
		o.experts.route = func(z, scale ref.Mat, chosen []int, r device.Routing) ref.Mat {
			w := ref.Route(z, ref.Mat{}, chosen, r)
			for i := range w.V {
				if scale.V != nil {
					w.V[i] *= scale.V[i%r.Active]
				}
			}
			return w
		}
	}},
	{"gradient of the router without the scale", "route/", func(o *ops) {
		o.experts.routeBack = func(dw, z, scale ref.Mat, chosen []int, r device.Routing) (dz, dscale ref.Mat) {
			dz, _ = ref.RouteBackward(dw, z, ref.Mat{}, chosen, r)
			_, dscale = ref.RouteBackward(dw, z, scale, chosen, r)
			return dz, dscale
		}
	}},
	{"gradient of the router for the chosen alone", "route/", func(o *ops) {
		o.experts.routeBack = func(dw, z, scale ref.Mat, chosen []int, r device.Routing) (dz, dscale ref.Mat) {
			dz, dscale = ref.RouteBackward(dw, z, scale, chosen, r)
			for n := range dz.Rows {
				for e := range dz.Cols {
					if !slices.Contains(chosen[n*r.Active:(n+1)*r.Active], e) {
						dz.Row(n)[e] = 0
					}
				}
			}
			return dz, dscale
		}
	}},
	{"ties by the highest index", "route/ties", func(o *ops) {
		o.experts.choose = func(z ref.Mat, k int) []int {
			back := permute(z, z.Cols, func(i int) int { return z.Cols - 1 - i })
			chosen := ref.Choose(back, k)
			for i, e := range chosen {
				chosen[i] = z.Cols - 1 - e
			}
			return chosen
		}
	}},
	{"choices in the order of experts", "route/", func(o *ops) {
		o.experts.choose = func(z ref.Mat, k int) []int {
			chosen := ref.Choose(z, k)
			for i := 0; i < len(chosen); i += k {
				slices.Sort(chosen[i : i+k])
			}
			return chosen
		}
	}},
	{"NaN chosen first", "route/not finite", func(o *ops) {
		o.experts.choose = func(z ref.Mat, k int) []int {
			z = z.Clone()
			for i, v := range z.V {
				if v != v {
					z.V[i] = 1e9
				}
			}
			return ref.Choose(z, k)
		}
	}},
	{"slots of an expert not by token", "route/", func(o *ops) {
		o.experts.sort = func(chosen []int, experts, k int) ref.Routed {
			r := ref.Sort(chosen, experts, k)
			for e := range experts {
				slices.Reverse(r.Rows[r.Starts[e]:r.Starts[e+1]])
			}
			return r
		}
	}},
	{"the product of the next expert", "grouped/", func(o *ops) {
		o.experts.grouped = func(x, w, bias ref.Mat, starts []int) ref.Mat {
			out := w.Rows / (len(starts) - 1)
			return ref.Grouped(x, ref.Stack(w.RowRange(out%w.Rows, w.Rows), w.RowRange(0, out%w.Rows)), bias, starts)
		}
	}},
	{"the first expert for all", "grouped/", func(o *ops) {
		o.experts.grouped = func(x, w, bias ref.Mat, starts []int) ref.Mat {
			all := slices.Repeat([]int{x.Rows}, len(starts))
			all[0] = 0
			return ref.Grouped(x, w, bias, all)
		}
	}},
	{"biases of the first expert", "grouped/", func(o *ops) {
		o.experts.grouped = func(x, w, bias ref.Mat, starts []int) ref.Mat {
			if bias.V != nil {
				one := bias.RowRange(0, 1)
				bias = bias.Clone()
				for e := range bias.Rows {
					copy(bias.Row(e), one.V)
				}
			}
			return ref.Grouped(x, w, bias, starts)
		}
	}},
	{"gradients of experts without their last slot", "grouped/", func(o *ops) {
		o.experts.groupedBack = func(dy, x, w ref.Mat, starts []int) (dx, dw, dbias ref.Mat) {
			dx, _, _ = ref.GroupedBackward(dy, x, w, starts)
			dy = dy.Clone()
			if last := starts[1]; last > 0 {
				clear(dy.Row(last - 1))
			}
			_, dw, dbias = ref.GroupedBackward(dy, x, w, starts)
			return dx, dw, dbias
		}
	}},
	{"slots summed without weights", "combine/", func(o *ops) {
		o.experts.combine = func(x, _ ref.Mat, slots []int, k int) ref.Mat { return ref.Combine(x, ref.Mat{}, slots, k) }
	}},
	{"slots in their own order", "combine/", func(o *ops) {
		o.experts.combine = func(x, w ref.Mat, slots []int, k int) ref.Mat {
			own := slices.Clone(slots)
			for i := range own {
				own[i] = i
			}
			return ref.Combine(x, w, own, k)
		}
	}},
	{"gradient of slots without weights", "combine/", func(o *ops) {
		o.experts.combineBack = func(dy, x, w ref.Mat, slots []int, k int) (dx, dw ref.Mat) {
			_, dw = ref.CombineBackward(dy, x, w, slots, k)
			for i := range w.V {
				w.V[i] = 1
			}
			dx, _ = ref.CombineBackward(dy, x, w, slots, k)
			return dx, dw
		}
	}},
	{"slots of the first expert not counted", "balance/", func(o *ops) {
		o.experts.count = func(starts []int) ref.Mat {
			c := ref.CountSlots(starts)
			c.V[0] = 0
			return c
		}
	}},
	{"balance by the counts of the expert before", "balance/", func(o *ops) {
		o.experts.balanceBack = func(z, c ref.Mat, f float64) ref.Mat {
			moved := c.Clone()
			for e := range moved.V {
				moved.V[e] = c.V[max(e-1, 0)]
			}
			return ref.BalanceBackward(z, moved, f)
		}
	}},
	{"balance added nowhere", "balance/", func(o *ops) {
		o.experts.balanceBack = func(z, _ ref.Mat, _ float64) ref.Mat { return ref.New(z.Rows, z.Cols) }
	}},
}

// withRouting is the choice, and its backward, by a changed rule.
func withRouting(change func(*device.Routing)) func(*ops) {
	return func(o *ops) {
		o.experts.route = func(z, scale ref.Mat, chosen []int, r device.Routing) ref.Mat {
			change(&r)
			return ref.Route(z, scale, chosen, r)
		}
	}
}
