// Package plan turns the record of a dry step into a verdict: what the step needs of a device's memory, whether it
// fits, how it should be cut so that it does, what it costs.
//
// It is arithmetic over device/dry's records. Nothing here knows a formula for the size of anything: to know what a
// setting needs, the step is run dry with it.
//
// Caveats. A plan is about one step and what the caller's dry run adds to it. Times are lower bounds from the rates of
// products and of memory that are given, without anything that overlaps or waits.
package plan

import (
	"fmt"
	"slices"
	"strings"

	"apr/device"
	"apr/device/dry"
	"apr/model"
)

// Setting says how a step is cut. Its result does not depend on it but for the order of float32 sums, and on Recompute
// not at all.
type Setting struct {
	BatchSize int             // rows asked for at a time; the step has a multiple of them
	MicroRows int             // rows of which the student's activations exist at one time, at most BatchSize
	ChunkRows int             // positions whose logits exist at one time
	Recompute model.Recompute // what the student's forward does not keep
}

// String describes the setting.
func (s Setting) String() string {
	return fmt.Sprintf("micro-batches of %d rows, chunks of %d positions, recomputing %v", s.MicroRows, s.ChunkRows, s.Recompute)
}

// Step runs the step dry as s says.
type Step func(s Setting) (*dry.Record, error)

// Verdicts of a plan.
const (
	Ready    = "ready"
	TooLarge = "insufficient_memory"
	NoDisk   = "insufficient_disk"
)

// Plan is what is known of a step before it runs.
type Plan struct {
	Setting `json:"-"`
	Verdict string   `json:"verdict"`
	Memory  Memory   `json:"memory"`
	Costs   Costs    `json:"costs"`
	Seconds *float64 `json:"seconds_per_step"` // at the rates given; nil without

	Largest *LargestBatch `json:"-"` // nil: not asked for
	Record  *dry.Record   `json:"-"`
}

// LargestBatch is the largest batch size that fits, however the step is cut: one row more does not. Sizes beyond that
// may fit again where memory does not grow with every row: on a CPU, whose free lists keep classes of sizes.
type LargestBatch struct {
	Size    int  `json:"largest_batch_size"`          // 0: not even 1
	IsBound bool `json:"largest_batch_size_is_bound"` // Size fits, and nothing larger was looked at
}

// Memory is what a step needs, in bytes by component. The sum is Total.
type Memory struct {
	Teacher     int64 `json:"teacher"`
	Student     int64 `json:"student"`
	Gradients   int64 `json:"gradients"`
	Optimizer   int64 `json:"optimizer"`
	Activations int64 `json:"activations"`
	Logits      int64 `json:"logits"`
	Batch       int64 `json:"batch"`
	KVCache     int64 `json:"kv_cache,omitempty"`
	Beside      int64 `json:"beside,omitempty"` // all that runs beside the step in a queue of its own
	Scratch     int64 `json:"scratch"`          // temps of operations and blocks, holes, what the device needs itself
	Total       int64 `json:"total"`
	Arena       int64 `json:"arena"` // of Total: the piece of memory in which all temps find place
	Holes       int64 `json:"holes"` // of Scratch: lost between temps
	Available   int64 `json:"available"`
	Host        int64 `json:"host,omitempty"`    // not of Total: experts in page-locked memory of the host
	Reserve     int64 `json:"reserve,omitempty"` // bytes that are free beyond that, for others
}

// Costs are what a step costs, by phase in the order of device.Phase, and together.
type Costs struct {
	FLOPs    float64            `json:"flops_per_step"` // of products and attention
	Bytes    float64            `json:"bytes_per_step"` // moved at least
	Launches int64              `json:"operations_per_step"`
	Waits    int                `json:"host_waits_per_step"`
	ByPhase  map[string]float64 `json:"flops_by_phase"`

	Host *HostCosts `json:"host,omitempty"` // nil: no weights are on the host
}

// HostCosts is what it costs to fetch weights from the host: at least Seconds a step, whatever hides behind other work.
type HostCosts struct {
	Bytes   float64 `json:"bytes_per_step"`
	Rate    float64 `json:"bytes_per_second"` // assumed, not measured
	Seconds float64 `json:"seconds_per_step"`
}

// String states the price.
func (h *HostCosts) String() string {
	return fmt.Sprintf("%.2f GB a step from the host, %.0f ms at an assumed %.0f GB/s", h.Bytes/1e9, 1e3*h.Seconds, h.Rate/1e9)
}

// Rates are what a device does in a second; 0: not known.
type Rates struct {
	FLOPS     float64 // of matrix products
	Bandwidth float64 // bytes
	Launch    float64 // seconds that an operation takes at least
}

// Of makes the plan of a setting from its record.
func Of(s Setting, r *dry.Record, budget int64, rates Rates) Plan {
	p := Plan{Setting: s, Verdict: Ready, Record: r, Memory: memoryOf(r, budget), Costs: costsOf(r), Seconds: rates.seconds(r)}
	if !p.Memory.fits() {
		p.Verdict = TooLarge
	}
	return p
}

func memoryOf(r *dry.Record, budget int64) Memory {
	m := Memory{Total: r.Total(), Arena: r.Temps, Holes: r.Temps - r.Most, Available: budget, Host: r.Host}
	for c, n := range r.ByComponent() {
		switch c {
		case device.TeacherWeights:
			m.Teacher += n
		case device.StudentWeights:
			m.Student += n
		case device.Gradients:
			m.Gradients += n
		case device.Moments:
			m.Optimizer += n
		case device.Activations:
			m.Activations += n
		case device.Logits:
			m.Logits += n
		case device.Batch:
			m.Batch += n
		case device.KVCache:
			m.KVCache += n
		case device.Besides:
			m.Beside += n
		default:
			m.Scratch += n
		}
	}
	return m
}

// fits reports whether the step fits; everything fits into a memory of unknown size.
func (m Memory) fits() bool { return m.Available == 0 || m.Total <= m.Available }

func costsOf(r *dry.Record) Costs {
	all := r.Cost()
	c := Costs{FLOPs: all.FLOPs, Bytes: all.Bytes, Launches: all.Launches, Waits: r.Waits, ByPhase: map[string]float64{}}
	if all.Host > 0 && r.Link > 0 {
		c.Host = &HostCosts{Bytes: all.Host, Rate: r.Link, Seconds: all.Host / r.Link}
	}
	for p, cost := range r.Costs() {
		c.ByPhase[device.Phase(p).String()] = cost.FLOPs
	}
	return c
}

// seconds adds up, for each operation, the longest of its arithmetic, its traffic and its start.
func (r Rates) seconds(rec *dry.Record) *float64 {
	if r.FLOPS <= 0 || r.Bandwidth <= 0 {
		return nil
	}
	var t float64
	for _, o := range rec.Ops {
		t += float64(o.Times) * max(o.FLOPs/r.FLOPS, o.Bytes/r.Bandwidth, r.Launch, fetching(rec, o.Host))
	}
	return &t
}

// fetching returns the seconds in which n bytes come from the host.
func fetching(rec *dry.Record, n int64) float64 {
	if n == 0 || rec.Link <= 0 {
		return 0
	}
	return float64(n) / rec.Link
}

// Table prints the memory of a step by component.
func (m Memory) Table() string {
	rows := []Row{
		{"teacher", m.Teacher}, {"student", m.Student}, {"gradients", m.Gradients}, {"optimizer", m.Optimizer},
		{"activations", m.Activations}, {"logits", m.Logits}, {"batch", m.Batch}, {"scratch", m.Scratch},
	}
	if m.KVCache > 0 {
		rows = append(rows, Row{"kv-cache", m.KVCache})
	}
	if m.Beside > 0 {
		rows = append(rows, Row{"beside the step", m.Beside})
	}
	return Table(append(rows, Row{"total", m.Total}), m.Available, m.Reserve)
}

// Row is an amount of memory, in bytes.
type Row struct {
	Name  string
	Bytes int64
}

// Table prints amounts of memory, a line each, then what is available, 0 if that is not known, and the reserve,
// if there is one. All are in MiB where the largest row is below 10 GiB, as Amount writes it, else in GiB.
func Table(rows []Row, available, reserve int64) string {
	var b strings.Builder
	line := func(name string, bytes int64) { fmt.Fprintf(&b, "%-16s %9.1f MiB\n", name, float64(bytes)/(1<<20)) }
	if slices.ContainsFunc(rows, func(r Row) bool { return r.Bytes >= 10<<30 }) {
		line = func(name string, bytes int64) { fmt.Fprintf(&b, "%-16s %9.3f GiB\n", name, GiB(bytes)) }
	}
	for _, r := range rows {
		line(r.Name, r.Bytes)
	}
	if available == 0 {
		fmt.Fprintf(&b, "%-16s not known\n", "available")
	} else {
		line("available", available)
	}
	if reserve > 0 {
		line("reserve", reserve)
	}
	return b.String()
}

// Amount writes n bytes in MiB, from 10 GiB on in GiB: fine enough to tell what fits from what does not.
func Amount(n int64) string {
	if n < 10<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.3f GiB", GiB(n))
}

// GiB returns n bytes in units of 2³⁰.
func GiB(n int64) float64 { return float64(n) / (1 << 30) }
