package distill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
)

// The plan of each rank is, to the byte and by component, what that rank holds: ranks with more rows and with fewer,
// and those that compute several parts one after the other. So is the memory through which gradients go.
func TestPlanOfRanks(t *testing.T) {
	c := tinyConfig(t)
	c.BatchSize, c.SeqLen, c.GradAccum = 7, 16, 1
	in, err := openInputs(context.Background(), c, newCPU(t), &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	for _, tt := range []struct {
		world int
		same  bool
		micro int
	}{{3, false, 7}, {2, false, 2}, {4, true, 7}, {2, true, 1}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			c := c
			c.Ranks = Group{World: tt.world, SameBits: tt.same}
			s := plan.Setting{BatchSize: c.BatchSize, MicroRows: tt.micro, ChunkRows: 20}
			held, buffers := heldByRanks(t, in, c, s)
			d := in.dryRun(c, newCPU(t).(dry.Planned).Target)
			most := int64(0)
			for rank := range tt.world {
				contracttest.Cases(t, 1)
				rec, err := d.recordOf(rank, s)
				if err != nil {
					t.Fatal(err)
				}
				if !maps.Equal(rec.Peak, held[rank]) {
					t.Errorf("rank %d: planned %v\nheld    %v", rank, rec.Peak, held[rank])
				}
				if rec.Exchange.Host != buffers[rank] || buffers[rank] == 0 {
					t.Errorf("rank %d: %d bytes planned for gradients on their way, %d held", rank, rec.Exchange.Host, buffers[rank])
				}
				most = max(most, rec.Total())
			}
			last, err := d.Record(s)
			if err != nil || last.Total() != most {
				t.Errorf("the run plans for %d bytes, the most that a rank needs is %d (%v)", last.Total(), most, err)
			}
			all, err := d.PlanRanks(plan.Of(s, last, 0, plan.Rates{}))
			if err != nil {
				t.Fatal(err)
			}
			rows := 0
			for rank, k := range all.Ranks {
				if k.FirstRow != rows || k.Rank != rank {
					t.Errorf("%+v begins at row %d", k, rows)
				}
				rows += k.Rows
			}
			if rows != c.Rows() || len(all.Ranks) != tt.world {
				t.Errorf("%d rows of %d ranks", rows, len(all.Ranks))
			}
		})
	}
}

// heldByRanks takes steps with ranks that are goroutines, each on a CPU device of its own, and returns by rank what was
// held at most, and the bytes of the buffer for gradients.
func heldByRanks(t *testing.T, in *inputs, c Config, s plan.Setting) (
	held []map[device.Component]int64, buffers []int64,
) {
	t.Helper()
	world := c.Ranks.World
	held, buffers = make([]map[device.Component]int64, world), make([]int64, world)
	errs := make([]error, world)
	var wg sync.WaitGroup
	for rank, comm := range collective.Local(world) {
		d := newCPU(t).(*cpu.Device)
		stream := d.NewStream()
		big, err := model.LoadFrozen(d, in.teacher, device.TeacherWeights)
		if err != nil {
			t.Fatal(err)
		}
		student := model.NewTrainable(d, in.studentConfig)
		student.Init(stream, 1)
		tr := NewTrainer(student, stream, c.Ranks.shareOf(c.Rows()), c.SeqLen)
		tr.Cut(s)
		tr.Loss.Spec, tr.Loss.Vocab, tr.Teacher = c.Loss, in.vocab, &teacher.Resident{Model: big}
		tr.Ranks = c.Ranks.ranks()
		tr.Ranks.Comm = comm
		wg.Go(func() {
			for _, left := range []uint8{0, 1} {
				b := wholeBatch(c, world, s.MicroRows, left)
				if _, err := tr.Apply(context.Background(), b); err != nil {
					errs[rank] = err
					comm.Abort(err)
					return
				}
			}
			_, held[rank] = d.Memory()
			buffers[rank] = 4 * int64(cap(tr.shared.host))
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return held, buffers
}

// wholeBatch is a step's batch in which the last position of each micro-batch of every rank has that mask.
func wholeBatch(c Config, world, micro int, left uint8) corpus.Batch {
	b := dryBatch(c.Rows(), c.SeqLen)
	for rank := range world {
		c.Ranks.dry(rank, false).maskLasts(b, micro, left)
	}
	return b
}

// A step with fewer rows than ranks is refused before anything is planned.
func TestFewerRowsThanRanks(t *testing.T) {
	err := Group{World: 4}.Check(3)
	if fault.KindOf(err) != fault.Usage {
		t.Errorf("error %v", err)
	}
	contracttest.Cases(t, 1)
}
