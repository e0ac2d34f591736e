package report

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"

	runlog "apr/run/log"
)

// Chart is one picture: several series over steps. Values are numbers of the records, or null.
type Chart struct {
	ID     string   `json:"id"`
	Title  string   `json:"title"`
	Unit   string   `json:"unit"`
	Note   string   `json:"note,omitempty"`
	Digits int      `json:"digits"`           // significant digits that labels show
	Smooth bool     `json:"smooth,omitempty"` // the numbers scatter: a running mean is drawn over them
	Dots   bool     `json:"dots,omitempty"`   // few numbers: each is marked
	X      []int    `json:"x"`
	Series []Series `json:"series"`
	// Thinned is how many steps there are if not all are here.
	Thinned int `json:"thinned,omitempty"`
}

// Series is one curve.
type Series struct {
	Label  string          `json:"label"`
	Kind   string          `json:"kind"` // student, control, teacher: its colour
	Values []runlog.Number `json:"values"`
}

// maxPoints is how many steps a chart holds unthinned.
const maxPoints = 4000

// metrics are the curves of steps.jsonl.
var metrics = []struct {
	id, title, unit, note string
	digits                int
	smooth                bool
	of                    func(runlog.Step) runlog.Number
}{
	{"loss", "Loss", "", "what each leg descends; the control's is its cross-entropy", 4, true, func(s runlog.Step) runlog.Number { return s.Loss }},
	{"ce", "Cross-entropy", "nats/token", "on the training text: comparable between the legs", 4, true, func(s runlog.Step) runlog.Number { return s.CE }},
	{"kl", "Divergence from the teacher", "nats/token", "as descended, at the temperature, before α·T²", 4, true, func(s runlog.Step) runlog.Number { return s.KL }},
	{"hidden", "Error of hidden states", "", "summed over pairs of layers, before its weight", 4, true, func(s runlog.Step) runlog.Number { return knownOf((*float64)(s.Hidden)) }},
	{"attention", "Divergence of attention maps", "nats", "mean over targets and pairs of layers, before its weight", 4, true, func(s runlog.Step) runlog.Number { return knownOf((*float64)(s.Attention)) }},
	{"share_ce", "Share of the cross-entropy in the loss", "", "its weighted mean, as a part of what is descended", 3, true, shareOf("ce")},
	{"share_kl", "Share of the divergence in the loss", "", "its weighted mean, as a part of what is descended", 3, true, shareOf("kl")},
	{"share_hidden", "Share of the hidden states in the loss", "", "their weighted mean, as a part of what is descended", 3, true, shareOf("hidden")},
	{"share_attention", "Share of the attention maps in the loss", "", "their weighted mean, as a part of what is descended", 3, true, shareOf("attention")},
	{"grad_norm", "Gradient norm", "", "before clipping", 3, true, func(s runlog.Step) runlog.Number { return s.GradNorm }},
	{"lr", "Learning rate", "", "", 3, false, func(s runlog.Step) runlog.Number { return runlog.Number(s.LR) }},
	{"tokens_per_second", "Throughput", "tokens/s", "", 4, true, func(s runlog.Step) runlog.Number { return s.TokensPerSecond }},
	{"cpus", "Processors", "processors kept busy", "by this process, from step to step", 3, true, func(s runlog.Step) runlog.Number { return known(s.CPUs) }},
	{"gpu_percent", "GPU", "% of the time", "in which kernels ran, as NVML says", 3, true, func(s runlog.Step) runlog.Number { return knownOf(s.GPUPercent) }},
	{"gpu_watts", "GPU power", "W", "as NVML says", 3, true, func(s runlog.Step) runlog.Number { return knownOf(s.GPUWatts) }},
}

// shareOf reads the share of a term of the loss.
func shareOf(name string) func(runlog.Step) runlog.Number {
	return func(s runlog.Step) runlog.Number {
		if share, ok := s.Shares[name]; ok {
			return share
		}
		return runlog.Number(math.NaN())
	}
}

// charts makes all pictures that have a number.
func charts(r *runlog.Record, rows []Score) []Chart {
	all := []Chart{} // JSON's list, never null
	if c := heldOut(r, rows); c != nil {
		all = append(all, *c)
	}
	names := legs(r)
	for _, m := range metrics {
		c := Chart{ID: m.id, Title: m.title, Unit: m.unit, Note: m.note, Digits: m.digits, Smooth: m.smooth}
		values := make([]map[int]runlog.Number, len(names))
		for i := range names {
			values[i] = map[int]runlog.Number{}
		}
		for _, s := range r.Steps {
			values[slices.Index(names, s.Leg)][s.Step] = m.of(s)
		}
		for i, name := range names {
			c.Series = append(c.Series, Series{Label: name, Kind: name})
			if !anyFinite(values[i]) { // the control has no teacher to diverge from
				c.Series = c.Series[:len(c.Series)-1]
				values[i] = nil
			}
		}
		values = slices.DeleteFunc(values, func(m map[int]runlog.Number) bool { return m == nil })
		if len(values) > 0 {
			c.fill(values)
			all = append(all, c)
		}
	}
	return all
}

// known is a number that is not 0, which stands for one that nobody knows.
func known(f float64) runlog.Number {
	if f == 0 {
		return runlog.Number(math.NaN())
	}
	return runlog.Number(f)
}

func knownOf[T int | float64](n *T) runlog.Number {
	if n == nil {
		return runlog.Number(math.NaN())
	}
	return runlog.Number(*n)
}

func anyFinite(m map[int]runlog.Number) bool {
	for _, v := range m {
		if v.Finite() {
			return true
		}
	}
	return false
}

// fill sets X and the series' values, thinned if there are many steps.
func (c *Chart) fill(values []map[int]runlog.Number) {
	steps := map[int]bool{}
	for _, m := range values {
		for k := range m {
			steps[k] = true
		}
	}
	c.X = slices.Sorted(maps.Keys(steps))
	if len(c.X) == 1 { // no line goes through one point
		c.Dots, c.Smooth = true, false
	}
	if len(c.X) > maxPoints {
		c.Thinned = len(c.X)
		c.X = thin(c.X, values, maxPoints)
	}
	for i, m := range values {
		c.Series[i].Values = make([]runlog.Number, len(c.X))
		for j, k := range c.X {
			v, ok := m[k]
			if !ok {
				v = runlog.Number(math.NaN())
			}
			c.Series[i].Values[j] = v
		}
	}
}

// thin chooses about limit of the steps x: the first and the last, and of each of equal pieces the steps where a curve has
// its smallest and its largest value, and one where it has none though it is there.
func thin(x []int, values []map[int]runlog.Number, limit int) []int {
	keep := map[int]bool{x[0]: true, x[len(x)-1]: true}
	pieces := max(1, limit/(2*len(values)))
	for p := range pieces {
		part := x[p*len(x)/pieces : (p+1)*len(x)/pieces]
		for _, m := range values {
			byValue := func(a, b int) int { return cmp.Compare(m[a], m[b]) }
			var finite []int
			for _, k := range part {
				if v, ok := m[k]; ok && v.Finite() {
					finite = append(finite, k)
				} else if ok {
					keep[k] = true
				}
			}
			if len(finite) > 0 {
				keep[slices.MinFunc(finite, byValue)] = true
				keep[slices.MaxFunc(finite, byValue)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(keep))
}

// heldOut is the picture of the held-out loss: during training, and at the end, with the teacher as the goal.
func heldOut(r *runlog.Record, rows []Score) *Chart {
	c := &Chart{ID: "held_out", Title: "Held-out loss", Unit: "nats/token", Digits: 5, Dots: true,
		Note: "on text that nobody trained on; the last points are the final evaluation"}
	names, last := []string{}, map[string]int{}
	values := map[string]map[int]runlog.Number{}
	put := func(leg string, step int, v runlog.Number) {
		if values[leg] == nil {
			names, values[leg] = append(names, leg), map[int]runlog.Number{}
		}
		values[leg][step] = v
	}
	for _, s := range r.Steps {
		last[s.Leg] = max(last[s.Leg], s.Step+1)
	}
	for _, e := range r.Events {
		var d struct {
			Leg  string        `json:"leg"`
			Step int           `json:"step"`
			Nats runlog.Number `json:"nats_per_token"`
		}
		if e.Kind == "evaluation" && e.Name == "held-out during training" && decode(e.Detail, &d) && d.Leg != "" {
			put(d.Leg, d.Step, d.Nats)
		}
	}
	for leg, name := range map[string]string{"student": distilledScore, "control": controlScore} {
		if s := find(rows, name); s != nil && last[leg] > 0 {
			put(leg, last[leg], s.NatsPerToken)
		}
	}
	if len(names) == 0 {
		return nil
	}
	if s := find(rows, untrainedScore); s != nil { // all students begin as this one
		for _, leg := range names {
			put(leg, 0, s.NatsPerToken)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(b, a) }) // student, control
	var curves []map[int]runlog.Number
	all := map[int]runlog.Number{}
	for _, leg := range names {
		c.Series = append(c.Series, Series{Label: leg, Kind: leg})
		curves = append(curves, values[leg])
		maps.Copy(all, values[leg])
	}
	if t := find(rows, teacherScore); t != nil {
		for k := range all {
			all[k] = t.NatsPerToken
		}
		c.Series = append(c.Series, Series{Label: "teacher", Kind: "teacher"})
		curves = append(curves, all)
	}
	c.fill(curves)
	return c
}

// data is the JSON that the page's script draws.
type data struct {
	Charts  []Chart         `json:"charts"`
	Samples []runlog.Sample `json:"samples"`
	// Reference names the model that is compared with, where it is no teacher.
	Reference string `json:"reference,omitempty"`
}

// dataJSON cannot end a script element: <, > and & are written as \u003c, \u003e and \u0026.
func dataJSON(p *Page, s *runlog.Samples) ([]byte, error) {
	d := data{Charts: p.Charts}
	if p.Verdict.Base {
		d.Reference = p.reference
	}
	if s != nil {
		d.Samples = s.Windows
	}
	return json.Marshal(d)
}
