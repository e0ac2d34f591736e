package main

import (
	"fmt"
	"strconv"
	"strings"

	"apr/internal/fault"
)

// part is which part of a cache a process makes, as one source says it: every of-th shard from shard i on. −1: it does not say.
type part struct {
	source string // as it was found, such as JOB_COMPLETION_INDEX=3
	i, of  int
}

// partOf returns which shards this process makes, by --shard, --shard-count, the index of a pod of an Indexed Job, and the number of an
// element of a Slurm array. All that speak have to agree; what they say is in the error's hint.
func (o *distillOptions) partOf(shardGiven bool, getenv func(string) string) (i, of int, err error) {
	var found []part
	if shardGiven {
		i, n, err := parseShard(o.Shard)
		if err != nil {
			return 0, 0, fault.New(fault.Usage, "--shard: %w", err)
		}
		found = append(found, part{"--shard " + o.Shard, i, n})
	}
	if o.ShardCount > 0 {
		found = append(found, part{fmt.Sprintf("--shard-count %d", o.ShardCount), -1, o.ShardCount})
	}
	for _, read := range []func(func(string) string) (*part, error){podPart, arrayPart} {
		p, err := read(getenv)
		if err != nil {
			return 0, 0, err
		}
		if p != nil {
			found = append(found, *p)
		}
	}
	if len(found) == 0 {
		return 0, 1, nil
	}
	return agree(found)
}

// agree returns what all parts say.
func agree(found []part) (i, of int, err error) {
	i, of = -1, -1
	for _, p := range found {
		if p.i >= 0 && i >= 0 && p.i != i || p.of >= 0 && of >= 0 && p.of != of {
			return 0, 0, contradiction(found, "which shards are to be made is said in two ways")
		}
		i, of = max(i, p.i), max(of, p.of)
	}
	switch {
	case of < 0:
		return 0, 0, contradiction(found, "how many processes share the shards is not said",
			"--shard-count N: the completions of the Job")
	case i < 0:
		return 0, 0, contradiction(found, "which of the processes this one is, is not said",
			"--shard I/N, or start it as an Indexed Job or a Slurm array")
	case i >= of:
		return 0, 0, contradiction(found, "the number of this process is not below their count")
	}
	return i, of, nil
}

// contradiction is an error whose hint is the advice, if there is any, and a table of what was found: a message is one
// line, a hint has as many as it needs.
func contradiction(found []part, what string, advice ...string) *fault.Error {
	width := len("found")
	for _, p := range found {
		width = max(width, len(p.source))
	}
	if len(advice) == 0 {
		advice = []string{"these say which:"}
	}
	lines := append(advice, fmt.Sprintf("%-*s  shard  of", width, "found"))
	for _, p := range found {
		lines = append(lines, fmt.Sprintf("%-*s  %-5s  %s", width, p.source, known0(p.i), known0(p.of)))
	}
	return fault.New(fault.Usage, "%s", what).WithHint("%s", strings.Join(lines, "\n")).WithID("E-SHARD-001")
}

// known0 is a number from 0 up, or that it is not said.
func known0(n int) string {
	if n < 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// podPart reads the index that Kubernetes gives a pod of an Indexed Job. It does not say how many there are.
func podPart(getenv func(string) string) (*part, error) {
	const name = "JOB_COMPLETION_INDEX"
	text := getenv(name)
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return nil, fault.In(fault.Usage, name, "%q is not a whole number from 0 up", text).WithID("E-SHARD-002")
	}
	return &part{name + "=" + text, int(n), -1}, nil
}

// arrayPart reads what Slurm says to an element of an array: element ID of MIN, MIN+STEP, … MAX. Elements that are picked one by one
// (--array=0,2,7) have no place among them that all of them know, and are refused, unless it is one alone: that one makes all that is missing.
func arrayPart(getenv func(string) string) (*part, error) {
	const prefix = "SLURM_ARRAY_TASK_"
	var said []string
	read := func(name string, missing int) (n int, err error) {
		text := getenv(prefix + name)
		if text == "" {
			return missing, nil
		}
		said = append(said, prefix+name+"="+text)
		v, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, fault.In(fault.Usage, prefix+name, "%q is not a whole number from 0 up", text).WithID("E-SHARD-002")
		}
		return int(v), nil
	}
	id, err := read("ID", -1)
	if id < 0 || err != nil {
		return nil, err
	}
	var v [4]int // minimum, count, maximum, step
	for k, name := range []string{"MIN", "COUNT", "MAX", "STEP"} {
		if v[k], err = read(name, -1); err != nil {
			return nil, err
		}
	}
	step := max(v[3], 1)
	p := part{strings.Join(said, " "), -1, v[1]}
	if v[0] >= 0 {
		p.i = (id - v[0]) / step
	}
	gaps := v[0] >= 0 && (id < v[0] || (id-v[0])%step != 0) || v[0] >= 0 && v[1] >= 0 && v[2] >= 0 && (v[2]-v[0])/step+1 != v[1]
	switch {
	case v[0] < 0 || v[1] < 1:
		return nil, contradiction([]part{p}, "an array needs "+prefix+"MIN and "+prefix+"COUNT")
	case gaps || p.i >= p.of:
		return nil, contradiction([]part{p},
			"the array's elements are not evenly spaced, so that none knows its place among them",
			fmt.Sprintf("sbatch --array=0-%d", max(v[1]-1, 0)))
	}
	return &p, nil
}
