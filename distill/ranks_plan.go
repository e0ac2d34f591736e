package distill

import (
	"apr/device"
	"apr/device/dry"
	"apr/plan"
)

// RanksPlan says how the ranks of a run share its steps.
type RanksPlan struct {
	World int        `json:"world_size"`
	Rows  int        `json:"rows_per_step"`   // of all ranks
	Parts int        `json:"parts,omitempty"` // that --deterministic=world cuts a step into
	Ranks []RankPlan `json:"ranks"`
	// NotCounted is memory that a rank takes and no plan knows.
	NotCounted string `json:"not_counted"`
}

// RankPlan is what one rank takes.
type RankPlan struct {
	Rank     int `json:"rank"`
	FirstRow int `json:"first_row"`
	Rows     int `json:"rows"`
	// Memory of a GPU is what the rank reserves before its first step, as much on all of them; of a CPU what it holds at
	// most.
	Memory   plan.Memory  `json:"memory"`
	Exchange dry.Exchange `json:"exchange_per_step"`
}

// What no plan knows of ranks.
const (
	notNccl    = "what NCCL itself takes of each GPU: channels and connections, which grow with the number of ranks"
	notSockets = "what is on its way between the processes, some pieces of 1 MiB for each rank"
)

// planRanks plans the ranks of a run as k cuts its steps, each by the step that it runs; nil: there is one rank, or no
// plan can be made for the device.
func (in *inputs) planRanks(c Config, dev device.Device, k *Candidate) (*RanksPlan, error) {
	planned, ok := dev.(dry.Planned)
	if !ok || c.Ranks.World < 2 || k.plan.Record == nil {
		return nil, nil
	}
	d := in.dryRun(c, planned.Target)
	d.Form, d.GroupRows = k.form, k.Rows
	return d.PlanRanks(k.plan)
}

// PlanRanks says what each of d's ranks takes of the steps that p cuts.
func (d DryRun) PlanRanks(p plan.Plan) (*RanksPlan, error) {
	all := p.BatchSize * d.Accum
	r := &RanksPlan{World: d.Ranks.World, Rows: all, Parts: d.Ranks.ranks().Leaves, NotCounted: notSockets}
	gpu := d.Target().Info.Kind != "cpu"
	if gpu {
		r.NotCounted = notNccl
	}
	same := map[int]*dry.Record{} // by the first rank that is alike
	for rank := range d.Ranks.World {
		lo, hi := d.Ranks.dry(rank, gpu).ownRows(all)
		own := RankPlan{Rank: rank, FirstRow: lo, Rows: hi - lo, Memory: p.Memory, Exchange: p.Record.Exchange}
		if !gpu {
			like := d.Ranks.alike(rank, all)
			if rank < 2 {
				like = rank
			}
			if same[like] == nil {
				rec, err := d.recordOf(rank, p.Setting)
				if err != nil {
					return nil, err
				}
				same[like] = rec
			}
			own.Memory = plan.Of(p.Setting, same[like], p.Memory.Available, plan.Rates{}).Memory
			own.Exchange = same[min(rank, 1)].Exchange // rank 0 sends all others their sums
		}
		r.Ranks = append(r.Ranks, own)
	}
	return r, nil
}

// exchangedByHost describes sums that go through the memory of the host and rank 0.
func (t *Trainer) exchangedByHost(x *dry.Exchange) {
	n := 0
	for _, p := range t.trained() {
		n += p.Rows * p.Cols
	}
	x.Gradients, x.Host = 4*float64(n), 4*int64(t.bucketRoom())
	if t.Ranks.Rank() == 0 {
		x.Gradients *= float64(t.Ranks.World() - 1)
	}
}
