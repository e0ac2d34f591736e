package distill

import (
	"fmt"
	"slices"

	"apr/collective"
	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/plan"
)

// TeachingPlan says what ranks of two kinds do in a step, beside as many ranks that each have the whole teacher.
// Operations are those of the kind of rank with the most rows. They are counted, not timed: a step takes at least as
// long as its busiest rank, and what travels comes on top.
type TeachingPlan struct {
	Learning int `json:"learning_ranks"`
	Teaching int `json:"teacher_ranks"`

	LearningFLOPs float64      `json:"learning_flops_per_step"`
	TeachingFLOPs float64      `json:"teaching_flops_per_step"`
	Memory        *plan.Memory `json:"teaching_memory"` // of a rank that only teaches

	// Of as many ranks that each have the whole teacher.
	ReplicatedFLOPs  float64      `json:"replicated_flops_per_step"` // 0: they cannot share a step
	ReplicatedMemory *plan.Memory `json:"replicated_memory"`         // null: they cannot share a step

	Faster string `json:"faster"` // teacher-ranks, replicated
	Reason string `json:"reason"`
	// NotCounted is memory that ranks of the two kinds take and no plan knows, beside that of RanksPlan.
	NotCounted string `json:"not_counted"`
}

// The ways to use the same ranks.
const (
	FasterTaught     = "teacher-ranks"
	FasterReplicated = "replicated"
)

// busiest is the operations of the busier kind of rank.
func (t *TeachingPlan) busiest() float64 { return max(t.LearningFLOPs, t.TeachingFLOPs) }

// planTeaching compares the run's way with replication; nil: no rank only teaches, or no plan can be made.
func (in *inputs) planTeaching(c Config, dev device.Device, k *Candidate) (*TeachingPlan, error) {
	planned, ok := dev.(dry.Planned)
	if !ok || !in.elsewhere || k.lessons == nil || k.plan.Record == nil {
		return nil, nil
	}
	d := in.dryRun(c, planned.Target)
	d.Form, d.GroupRows = k.form, k.Rows
	return d.planTeaching(k, Choice{BatchSize: k.plan.BatchSize, ChunkRows: c.ChunkRows, Recompute: c.Recompute})
}

// planTeaching plans the step of the same ranks that all hold the teacher and learn, as far as c leaves it open.
func (d DryRun) planTeaching(k *Candidate, c Choice) (*TeachingPlan, error) {
	g, all := d.Ranks, k.plan.BatchSize*d.Accum
	t := &TeachingPlan{Learning: g.World, Teaching: g.Teachers, Memory: k.Lessons, LearningFLOPs: k.plan.Costs.FLOPs,
		NotCounted: notSockets}
	if d.Target().Info.Kind != "cpu" {
		t.NotCounted = g.notPairs()
	}
	for _, rec := range k.lessons {
		row := plan.Of(plan.Setting{}, rec, 0, plan.Rates{}).Costs.FLOPs / float64(d.lessonRows(k.plan.BatchSize))
		t.TeachingFLOPs = max(t.TeachingFLOPs, row*float64(d.busiestTeacher(all)))
	}
	if all < g.All() {
		t.Faster = FasterTaught
		t.Reason = fmt.Sprintf("%d rows are fewer than %d ranks that each have the whole teacher", all, g.All())
		return t, nil
	}
	if err := (Group{World: g.All(), SameBits: g.SameBits}).Check(all); err != nil { // such a run would be refused
		t.Faster = FasterTaught
		t.Reason = fmt.Sprintf("%d ranks that each have the whole teacher are refused: %v", g.All(), err)
		return t, nil
	}
	target := d.Target
	d.Target = func() dry.Target {
		t := target()
		if g.All() > 1 && t.Info.Kind != "cpu" { // more ranks share the training state
			t.Share = device.Share{World: g.All()}
		}
		return t
	}
	d.elsewhere, d.Ranks.World, d.Ranks.Teachers, d.Ranks.Split = false, g.All(), 0, false
	p, err := d.Plan(c)
	if err != nil && fault.KindOf(err) != fault.Memory {
		return nil, err
	}
	t.ReplicatedFLOPs, t.ReplicatedMemory = p.Costs.FLOPs, &p.Memory
	than := fmt.Sprintf("the busiest rank has %.3g operations a step with --teacher-ranks, and %.3g where each of %d "+
		"ranks has the whole teacher", t.busiest(), t.ReplicatedFLOPs, g.All())
	switch {
	case err != nil:
		t.Faster = FasterTaught
		t.Reason = fmt.Sprintf("with %s the whole teacher does not fit beside the student: a rank %s", k.Backend, needs(p))
	case t.busiest() < t.ReplicatedFLOPs:
		t.Faster, t.Reason = FasterTaught, than
	default:
		t.Faster, t.Reason = FasterReplicated, than
	}
	return t, nil
}

// notPairs says what NCCL takes for what goes from GPU to GPU between a learning rank and a teaching one, or between
// two sections.
func (g Group) notPairs() string {
	learning, teaching := 0, 0
	for rank := range g.All() {
		from, to := g.pairs(rank)
		if n := len(from) + len(to); rank < g.World {
			learning = max(learning, n)
		} else {
			teaching = max(teaching, n)
		}
	}
	return fmt.Sprintf("what NCCL itself takes of each GPU for pairs of ranks between which the teacher's states "+
		"travel, each with channels and connections of its own: %s of a rank that learns, %s of one that teaches at most",
		pairsOf(learning), pairsOf(teaching))
}

// pairsOf writes a number of pairs.
func pairsOf(n int) string {
	if n == 1 {
		return "1 pair"
	}
	return fmt.Sprintf("%d pairs", n)
}

// busiestTeacher returns how many of a step's rows one teaching rank computes at most.
func (d DryRun) busiestTeacher(all int) int {
	g := d.Ranks
	if g.Split {
		return all
	}
	rows := make([]int, g.Teachers)
	for s := range g.World {
		from, to := collective.Shard(all, s, g.World)
		lo, hi := teachersOf(s, g.World, g.Teachers)
		for t := lo; t < hi; t++ {
			first, last := collective.Shard(to-from, t-lo, hi-lo)
			rows[t] += last - first
		}
	}
	return slices.Max(rows)
}
