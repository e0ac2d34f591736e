package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"apr/collective"
	"apr/device"
	"apr/tensor"
)

// Collective operations that are measured.
const (
	SumRanks      = "sum"
	SumTree       = "tree sum" // whose bits do not depend on the number of ranks
	ReduceScatter = "reduce-scatter"
	AllGather     = "all-gather"
	BroadcastAll  = "broadcast"
	BarrierAll    = "barrier"
)

// Communicator is a group of ranks in this process whose collectives are measured. Do is one rank's call of an
// operation on n float32; all ranks make the same calls in the same order, each rank in its own goroutine.
type Communicator struct {
	Name       string // local, sockets, nccl
	Algorithm  string
	Topology   string
	Ranks      int
	Operations []string
	Do         func(rank int, operation string, n int) error
	Close      func()
}

// CollectiveRow is one operation at one size.
type CollectiveRow struct {
	Communicator string  `json:"communicator"`
	Algorithm    string  `json:"algorithm"`
	Topology     string  `json:"topology"`
	Ranks        int     `json:"ranks"`
	Operation    string  `json:"operation"`
	Bytes        int64   `json:"bytes"` // of the whole array; 0 of a barrier
	Calls        int     `json:"calls"`
	MedianUS     float64 `json:"median_us"` // of a call, on rank 0
	LeastUS      float64 `json:"least_us"`
	// AlgorithmGB is bytes over time; BusGB what a link of each rank carries at least for it, in GB/s.
	AlgorithmGB float64 `json:"algorithm_gb_per_s"`
	BusGB       float64 `json:"bus_gb_per_s"`
}

// busFactor is the least number of bytes that one of n ranks has to send or receive, per byte of the array:
//
//	sum 2(n−1)/n, reduce-scatter and all-gather (n−1)/n, broadcast 1
func busFactor(operation string, n int) float64 {
	part := float64(n-1) / float64(n)
	switch operation {
	case SumRanks, SumTree:
		return 2 * part
	case ReduceScatter, AllGather:
		return part
	}
	return 1
}

// MeasureCollectives calls every operation at every size for about a time, and at least three times. progress is called
// after each.
func MeasureCollectives(ctx context.Context, c *Communicator, sizes []int64, about time.Duration,
	progress func()) (rows []CollectiveRow, err error) {
	for _, operation := range c.Operations {
		all := sizes
		if operation == BarrierAll {
			all = []int64{0}
		}
		for _, bytes := range all {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			n := int(bytes / 4)
			first, err := c.calls(operation, n, 2)
			if err != nil {
				return nil, err
			}
			calls := int(math.Min(1000, math.Max(3, about.Seconds()/max(first[1], 1e-9))))
			took, err := c.calls(operation, n, calls)
			if err != nil {
				return nil, err
			}
			rows = append(rows, c.row(operation, bytes, took))
			progress()
		}
	}
	return rows, nil
}

// row makes a row of the seconds that calls took.
func (c *Communicator) row(operation string, bytes int64, took []float64) CollectiveRow {
	median := Percentile(took, 50)
	r := CollectiveRow{Communicator: c.Name, Algorithm: c.Algorithm, Topology: c.Topology, Ranks: c.Ranks,
		Operation: operation, Bytes: bytes, Calls: len(took), MedianUS: 1e6 * median, LeastUS: 1e6 * slices.Min(took)}
	if bytes > 0 && median > 0 {
		r.AlgorithmGB = float64(bytes) / median / 1e9
		r.BusGB = r.AlgorithmGB * busFactor(operation, c.Ranks)
	}
	return r
}

// calls runs an operation on n float32 `calls` times on all ranks, and returns the seconds of each call on rank 0.
func (c *Communicator) calls(operation string, n, calls int) ([]float64, error) {
	took := make([]float64, calls)
	failed := make([]error, c.Ranks)
	var wg sync.WaitGroup
	for rank := range c.Ranks {
		wg.Go(func() {
			for i := range calls {
				began := time.Now()
				if failed[rank] = c.Do(rank, operation, n); failed[rank] != nil {
					return
				}
				if rank == 0 {
					took[i] = time.Since(began).Seconds()
				}
			}
		})
	}
	wg.Wait()
	return took, errors.Join(failed...)
}

// hostGroup measures the collectives of package collective, over memory of the host.
func hostGroup(name, algorithm, topology string, comms []collective.Comm) *Communicator {
	buffers, texts := make([][]float32, len(comms)), make([][]byte, len(comms))
	c := &Communicator{Name: name, Algorithm: algorithm, Topology: topology, Ranks: len(comms),
		Operations: []string{BarrierAll, SumRanks, ReduceScatter, AllGather, BroadcastAll}}
	c.Do = func(rank int, operation string, n int) error {
		if len(buffers[rank]) < n {
			buffers[rank], texts[rank] = make([]float32, n), make([]byte, 4*n)
		}
		x, comm := buffers[rank][:n], comms[rank]
		switch operation {
		case SumRanks:
			return comm.Sum32(x)
		case ReduceScatter:
			return comm.ReduceScatter(x)
		case AllGather:
			return comm.AllGather(x)
		case BroadcastAll:
			return comm.Broadcast(texts[rank][:4*n])
		case BarrierAll:
			return comm.Barrier()
		}
		panic("bench: no such collective: " + operation)
	}
	c.Close = func() {
		for _, comm := range comms {
			_ = comm.Close() // nothing is lost
		}
	}
	return c
}

// LocalGroup are ranks that are goroutines.
func LocalGroup(ranks int) *Communicator {
	return hostGroup("local", "binary tree of sums, copies", "goroutines of one process", collective.Local(ranks))
}

// SocketsGroup are ranks that TCP joins, on this machine.
func SocketsGroup(ctx context.Context, ranks int) (*Communicator, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	comms, failed := make([]collective.Comm, ranks), make([]error, ranks)
	o := collective.Options{Secret: []byte("bench"), Wait: 30 * time.Second, Silence: 30 * time.Second}
	var wg sync.WaitGroup
	for rank := range ranks {
		wg.Go(func() {
			h := collective.Hello{Rank: rank, World: ranks, Who: fmt.Sprint("goroutine ", rank)}
			if rank == 0 {
				comms[0], failed[0] = collective.Serve(ctx, l, h, o)
				return
			}
			comms[rank], failed[rank] = collective.Join(ctx, func(ctx context.Context) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			}, h, o)
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	return hostGroup("sockets", "through rank 0, binary tree there", "TCP on 127.0.0.1", comms), nil
}

// DeviceGroup joins devices and measures the sums that go from memory to memory: NCCL's own algorithm, and the binary
// tree whose bits do not depend on the number of ranks. The devices are closed with the group.
func DeviceGroup(devices []device.Joiner) (*Communicator, error) {
	id, err := devices[0].GroupID()
	if err != nil {
		return nil, err
	}
	streams, failed := make([]device.Exchanger, len(devices)), make([]error, len(devices))
	var wg sync.WaitGroup
	for rank, d := range devices {
		wg.Go(func() {
			if failed[rank] = d.Join(rank, len(devices), id); failed[rank] == nil {
				streams[rank] = d.NewStream().(device.Exchanger)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	buffers := make([]map[int]device.Tensor, len(devices))
	c := &Communicator{Name: "nccl", Algorithm: "NCCL's choice; tree sum: binary tree", Topology: "GPUs of one machine",
		Ranks: len(devices), Operations: []string{SumRanks, SumTree}}
	c.Do = func(rank int, operation string, n int) error {
		if buffers[rank] == nil {
			buffers[rank] = map[int]device.Tensor{}
		}
		x, ok := buffers[rank][n]
		if !ok {
			x = devices[rank].Alloc(fmt.Sprint("sum of ", n), device.Gradients, tensor.F32, 1, n)
			streams[rank].Zero(x)
			buffers[rank][n] = x
		}
		streams[rank].SumRanks(operation == SumTree, x)
		var first [1]float32
		return streams[rank].Download(first[:], x.ColRange(0, 1))
	}
	c.Close = func() {
		for _, d := range devices {
			_ = d.Close() // nothing is lost
		}
	}
	return c, nil
}
