package distill

import (
	"fmt"

	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
	"apr/teacher/cache"
)

// streamPositions are those of a pass of a teacher whose layers come from the host, where memory allows: layers
// then take much longer to compute than to fetch.
const streamPositions = 65536

// leastPositions go through a layer at a time, where memory allows: fewer leave parts of a GPU idle.
const leastPositions = 2048

// passWay is how a precomputation computes its teacher.
type passWay struct {
	backend teacher.Backend
	form    device.Form
	rows    int // that go through a layer at a time: PassRows
	groups  int // of rows, that go through a layer before the next
	plan    *plan.Plan
	record  *dry.Record // nil: no plan can be made for the device
	reason  string
}

// PassWay describes how a teacher is computed over the rows of a pass, and what the pass costs.
type PassWay struct {
	Backend   teacher.Backend `json:"teacher_backend"`
	Reason    string          `json:"teacher_backend_reason"`
	Positions int             `json:"positions"`       // of a pass
	Group     int             `json:"group_positions"` // of it, that go through a layer at a time
	Memory    plan.Memory     `json:"memory"`
	Costs     plan.Costs      `json:"costs"` // of a pass
}

// describe returns nil where no plan was made.
func (w passWay) describe(seqLen int) *PassWay {
	if w.plan == nil {
		return nil
	}
	return &PassWay{w.backend, w.reason, w.rows * w.groups * seqLen, w.rows * seqLen, w.plan.Memory, w.plan.Costs}
}

// chooseWay chooses how the teacher is computed: as asked for; else expanded, in blocks, or with layers that
// come from the host, the first of these that fits. h has all but what depends on that.
func (p *precomputation) chooseWay(h cache.Header) (passWay, error) {
	one := passWay{rows: h.PassRows, groups: 1}
	if p.chosen != nil {
		one.form = *p.chosen
		return one, nil
	}
	asked, quantised, cuda := p.c.TeacherBackend, p.in.teacherQuantised(), p.dev.Info().Kind == "cuda"
	if asked == "" {
		asked = teacher.Auto
	}
	b, err := (teacher.Situation{Asked: asked, CUDA: cuda, Quantised: quantised, Fits: true}).Rule()
	if err != nil {
		return one, err
	}
	planned, ok := p.dev.(dry.Planned)
	if !ok || !cuda {
		one.backend, one.form = b, b.Form(false)
		return one, nil
	}
	ways := []teacher.Backend{b}
	if asked == teacher.Auto {
		ways = append(candidates(asked, p.c.TeacherCache, cuda, quantised), teacher.Stream)
	}
	var first error
	for _, b := range ways {
		w, err := p.planWay(h, b, planned)
		if err == nil {
			w.reason = wayReason(w, asked, first)
			return w, nil
		}
		if fault.KindOf(err) != fault.Memory {
			return w, err
		}
		if first == nil {
			first = err
		}
	}
	return one, first
}

// wayReason says why a way was taken; refused is why an earlier one was not.
func wayReason(w passWay, asked teacher.Backend, refused error) string {
	reason := "the first that fits"
	switch {
	case asked != teacher.Auto:
		reason = "asked for"
	case refused != nil && w.form.HostLayers:
		reason = "nothing fits with all layers on the device"
	}
	if c := w.plan.Costs.Host; c != nil {
		reason += fmt.Sprintf(": a pass fetches %.2f GB from the host, %.0f ms at an assumed %.0f GB/s", c.Bytes/1e9,
			1e3*c.Seconds, c.Rate/1e9)
	}
	return reason
}

// planWay plans a pass with a backend: of layers that come from the host with as many positions as fit, up to
// streamPositions, and of these as many at a time through a layer as fit.
func (p *precomputation) planWay(h cache.Header, b teacher.Backend, planned dry.Planned) (w passWay, err error) {
	w = passWay{backend: b, form: b.Form(false), rows: h.PassRows, groups: 1}
	if !w.form.HostLayers {
		return w, p.plan(h, &w, planned)
	}
	most := h.PassRows
	for total := max(1, streamPositions/h.SeqLen); ; total /= 2 {
		for rows := min(most, total); ; rows = (rows + 1) / 2 {
			w.rows, w.groups = rows, max(1, total/rows)
			if err = p.plan(h, &w, planned); fault.KindOf(err) != fault.Memory {
				return w, err
			}
			if rows == 1 || total > 1 && rows*h.SeqLen <= leastPositions {
				break
			}
		}
		if total <= 1 {
			return w, err
		}
	}
}

// plan runs a pass dry. One that does not fit is a fault of kind Memory.
func (p *precomputation) plan(h cache.Header, w *passWay, planned dry.Planned) error {
	h.PassRows = w.rows
	target := planned.Target()
	dev := dry.New(target)
	m, err := model.Describe(p.in.teacher).LoadFrozen(dev, device.TeacherWeights, w.form)
	if err != nil {
		return err
	}
	dryPass(dev, dev.NewStream(), h, w.groups, m, p.c.DocumentMask)
	w.record = dev.Record()
	s := plan.Setting{BatchSize: w.rows * w.groups, MicroRows: w.rows, ChunkRows: h.ChunkRows}
	made := plan.Of(s, w.record, target.Budget, plan.Rates{})
	made.Memory.Reserve = target.Reserve
	w.plan = &made
	if made.Verdict != plan.Ready {
		remedy := "lower --seq-len, quantise the teacher (apr quantize TEACHER -s q4_k_m -o teacher-q4.apr), or free memory"
		if p.verifies { // teacher and rows are the cache's
			remedy = "free memory, verify the cache where there is more, or with --backend cpu"
		}
		return fault.New(fault.Memory, "a pass of the teacher over %d × %d positions %s", w.rows*w.groups, h.SeqLen,
			needs(made)).WithHint("%s\n%s", remedy, made.Memory.Table()).WithID("E-DISTILL-131")
	}
	return nil
}

// planVerified plans the passes that a cache was made in, once its header is known.
func (p *precomputation) planVerified() error {
	planned, ok := p.dev.(dry.Planned)
	if !ok || p.way.record == nil || p.way.rows == p.header.PassRows && p.way.groups == 1 {
		return nil
	}
	p.way.rows, p.way.groups = p.header.PassRows, 1
	return p.plan(p.header, &p.way, planned)
}
