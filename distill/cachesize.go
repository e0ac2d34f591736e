package distill

import (
	"context"
	"errors"
	"math"
	"strings"

	"apr/device"
	runlog "apr/run/log"
)

// drawsBytes are the bytes of a position's draws as published, which the size of shards and the plan are made by:
// about 12 ids are drawn of natural text.
const drawsBytes = 37

// CacheSize is what a teacher's cache takes on the disk.
type CacheSize struct {
	Rows      int   `json:"rows"`
	Positions int64 `json:"positions"`
	Draws     int64 `json:"draws_bytes"`  // estimated: 37 a position
	Hidden    int64 `json:"hidden_bytes"` // hidden states and the head
	Head      int64 `json:"head_bytes"`   // of it
	PerDraw   int   `json:"draws_bytes_per_position"`
	PerHidden int   `json:"hidden_bytes_per_position"`
	Available int64 `json:"available_bytes"` // 0: not known

	Inputs map[string]runlog.Input `json:"-"` // that were hashed, as in a run's manifest
}

// SizeOfCache says what a cache of either kind would take, from the data and the headers of files. With hash it also
// reads the teacher's weights, for Inputs.
func SizeOfCache(ctx context.Context, c Config, dev device.Device, hash bool, obs Observer) (s *CacheSize, err error) {
	in, err := openForCache(ctx, c, obs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.close()) }()
	if hash {
		if err := in.hashModel(nameOf(0), c.Teacher, in.teacher); err != nil {
			return nil, err
		}
	}
	s = in.cacheSize(c, dev)
	s.Inputs = in.records
	if free, ok := freeFor(c.Output); ok && !strings.Contains(c.Output, "://") {
		s.Available = int64(min(free, math.MaxInt64))
	}
	return s, nil
}

// cacheSize is what a cache of the first teacher over the rows of the data takes.
func (in *inputs) cacheSize(c Config, dev device.Device) *CacheSize {
	keys, _ := cacheKeys(in.rows, c.DocumentMask, nil)
	s := &CacheSize{Rows: len(keys), Positions: int64(len(keys)) * int64(c.SeqLen), PerDraw: drawsBytes,
		PerHidden: in.teacher.Config.Hidden * dev.Info().Activations.BlockBytes()}
	head := "lm_head.weight"
	if in.teacher.Config.Tied {
		head = embedding
	}
	if t, ok := in.teacher.File.Tensor(head); ok {
		s.Head = t.Held().Size
	}
	s.Draws, s.Hidden = s.Positions*int64(s.PerDraw), s.Positions*int64(s.PerHidden)+s.Head
	return s
}
