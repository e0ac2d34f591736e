package main

import (
	"errors"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// TestPartOf: which shards a process makes, by flags and schedulers; contradictions name all that was found.
func TestPartOf(t *testing.T) {
	for _, tt := range []struct {
		env, shard string
		count      int
		i, of      int
		wrong      string
	}{
		{of: 1},
		{shard: "2/5", i: 2, of: 5},
		{shard: "2/5", count: 5, i: 2, of: 5},
		{shard: "2/5", count: 4, wrong: "--shard-count 4  -      4"},
		{count: 4, wrong: "which of the processes this one is"},
		{env: "JOB_COMPLETION_INDEX=0", wrong: "how many processes"},
		{env: "JOB_COMPLETION_INDEX=3", count: 4, i: 3, of: 4},
		{env: "JOB_COMPLETION_INDEX=4", count: 4, wrong: "not below their count"},
		{env: "JOB_COMPLETION_INDEX=3", shard: "3/4", i: 3, of: 4},
		{env: "JOB_COMPLETION_INDEX=3", shard: "2/4", wrong: "said in two ways"},
		{env: "JOB_COMPLETION_INDEX=-1", count: 4, wrong: "JOB_COMPLETION_INDEX"},
		{env: "JOB_COMPLETION_INDEX=x", wrong: "not a whole number"},
		{env: "SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=4 SLURM_ARRAY_TASK_COUNT=8 SLURM_ARRAY_TASK_MAX=11 SLURM_ARRAY_TASK_STEP=1", i: 3, of: 8},
		{env: "SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=4 SLURM_ARRAY_TASK_COUNT=8", i: 3, of: 8},
		{env: "SLURM_ARRAY_TASK_ID=6 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MAX=9 SLURM_ARRAY_TASK_STEP=3", i: 2, of: 4},
		{env: "SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MAX=9 SLURM_ARRAY_TASK_STEP=3", wrong: "not evenly spaced"},
		{env: "SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_COUNT=1 SLURM_ARRAY_TASK_MAX=3", of: 1},
		{env: "SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_MAX=7 SLURM_ARRAY_TASK_STEP=1", wrong: "not evenly spaced"},
		{env: "SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_COUNT=3", wrong: "not evenly spaced"},
		{env: "SLURM_ARRAY_TASK_ID=9 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_COUNT=3", wrong: "not evenly spaced"},
		{env: "SLURM_ARRAY_TASK_ID=2", wrong: "an array needs"},
		{env: "SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=4", count: 5, wrong: "said in two ways"},
		{env: "SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=4 JOB_COMPLETION_INDEX=1", wrong: "said in two ways"},
		{env: "SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=4", of: 1},
	} {
		vars := map[string]string{}
		for _, kv := range strings.Fields(tt.env) {
			name, value, _ := strings.Cut(kv, "=")
			vars[name] = value
		}
		o := &distillOptions{Shard: tt.shard, ShardCount: tt.count}
		i, of, err := o.partOf(tt.shard != "", func(name string) string { return vars[name] })
		switch {
		case tt.wrong == "" && (err != nil || i != tt.i || of != tt.of):
			t.Errorf("%+v: %d of %d, %v", tt, i, of, err)
		case tt.wrong != "" && (fault.KindOf(err) != fault.Usage || !strings.Contains(linesOf(err), tt.wrong)):
			t.Errorf("%+v: %d of %d, %v", tt, i, of, err)
		}
		contracttest.Cases(t, 1)
	}
}

// linesOf is what a person reads of an error, and how: its message is one line.
func linesOf(err error) string {
	var f *fault.Error
	if !errors.As(err, &f) || strings.Contains(f.Msg, "\n") {
		return ""
	}
	return f.Error() + "\n" + f.Hint
}
