package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// race is what was measured of a pair of teacher and student: of each program its best round.
type race struct {
	pair          string
	rounds        int
	ours          step
	theirs        float64 // tokens/s, 0: not measured
	theirGiB      float64
	spread        float64 // the largest of all rounds
	late          int64
	waits         float64
	startSeconds  float64 // the shortest of all rounds: the first may compile kernels
	theirFailures []string
}

// step is what is read of the JSON of apr bench.
type step struct {
	TokensPerSecond float64                  `json:"tokens_per_second"`
	Spread          float64                  `json:"p95_over_p50"`
	MFU             float64                  `json:"mfu"`
	FloorShare      float64                  `json:"floor_share"` // 0: not measured
	PeakMemory      map[string]int64         `json:"peak_memory"`
	Waits           float64                  `json:"host_waits_per_step"`
	Late            int64                    `json:"loads_after_first_step"`
	Busy            struct{ Median float64 } `json:"gpu_busy_percent"`
	Start           map[string]float64       `json:"start_ms"`
	Plan            struct {
		Memory struct{ Total int64 }
	}
}

// torchLine is a result of torch_kd.py.
var torchLine = regexp.MustCompile(`: ([\d.]+) ms/step (\d+) tok/s peak ([\d.]+) GiB`)

const gib = 1 << 30

// otherArithmetic is a way that is not compared with PyTorch's bfloat16.
const otherArithmetic = "tf32"

// readRaces reads all rounds of a folder.
func readRaces(dir string) (all []*race, err error) {
	names, err := files(dir, "apr-*.json")
	if err != nil {
		return nil, err
	}
	byPair := map[string]*race{}
	for _, path := range names {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var s step
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("%s is not a result of apr bench: %w", path, err)
		}
		if !(s.TokensPerSecond > 0) {
			return nil, fmt.Errorf("%s has no speed", path)
		}
		pair := pairOf(path, "apr-")
		r := byPair[pair]
		if r == nil {
			r = &race{pair: pair, startSeconds: s.Start["all"] / 1e3}
			byPair[pair] = r
			all = append(all, r)
		}
		r.add(s)
	}
	peers, err := files(dir, "torch-*.txt")
	if err != nil {
		return nil, err
	}
	for _, path := range peers {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			if pair, way, _ := strings.Cut(r.pair, "@"); pair == pairOf(path, "torch-") && way != otherArithmetic {
				r.peer(string(text))
			}
		}
	}
	slices.SortFunc(all, func(a, b *race) int { // the largest teacher first, its ways in order of name
		x, wayX, _ := strings.Cut(a.pair, "@")
		y, wayY, _ := strings.Cut(b.pair, "@")
		return cmp.Or(cmp.Compare(y, x), cmp.Compare(wayX, wayY))
	})
	return all, nil
}

// pairOf returns the pair in the name of a file, with the way in which the teacher was computed if there are several:
// 7b:0.5b@q4k of apr-7b:0.5b@q4k-1.json.
func pairOf(path, prefix string) string {
	name := strings.TrimPrefix(filepath.Base(path), prefix)
	return name[:max(0, strings.LastIndexByte(name, '-'))]
}

// add takes a round of apr.
func (r *race) add(s step) {
	r.rounds++
	if s.TokensPerSecond > r.ours.TokensPerSecond {
		r.ours = s
	}
	r.spread, r.late, r.waits = max(r.spread, s.Spread), max(r.late, s.Late), max(r.waits, s.Waits)
	r.startSeconds = min(r.startSeconds, s.Start["all"]/1e3)
}

// peer takes a round of PyTorch.
func (r *race) peer(text string) {
	m := torchLine.FindStringSubmatch(text)
	if m == nil {
		r.theirFailures = append(r.theirFailures, strings.TrimSpace(text))
		return
	}
	speed, _ := strconv.ParseFloat(m[2], 64) // digits, as the pattern says
	memory, _ := strconv.ParseFloat(m[3], 64)
	if speed > r.theirs {
		r.theirs, r.theirGiB = speed, memory
	}
}

// limits of what is judged of a measured step.
const (
	overPlan   = 0.05 // device memory over or under the plan
	leastBusy  = 90   // percent of time in which kernels run
	blocksCost = 1.05 // time of a step with the 7B teacher in blocks, over that with the expanded one
)

// judged are rows of what a step must keep to, however fast it is.
func judged(races []*race) (all []check) {
	row := func(name string, measured, tolerance float64, ok bool) {
		m, limit := fmt.Sprintf("%.3g", measured), fmt.Sprintf("%g", tolerance)
		all = append(all, check{name: name, measured: m, tolerance: limit, failed: !ok})
	}
	speed := map[string]float64{}
	for _, r := range races {
		speed[r.pair] = r.ours.TokensPerSecond
		off := math.Abs(float64(r.ours.PeakMemory["device"])/float64(r.ours.Plan.Memory.Total) - 1)
		row(r.pair+": device memory off its plan", off, overPlan, off <= overPlan)
		row(r.pair+": kernels loaded after the first step", float64(r.late), 0, r.late == 0)
		row(r.pair+": GPU busy, percent, at least", r.ours.Busy.Median, leastBusy, r.ours.Busy.Median >= leastBusy)
	}
	if a, b := speed["7b:0.5b@cublas"], speed["7b:0.5b@q4k"]; a > 0 && b > 0 {
		row("7b:0.5b: step with the teacher in blocks over that with it expanded", a/b, blocksCost, a/b <= blocksCost)
	}
	return all
}

// raceCells is the table of speed.
func raceCells(races []*race) [][]string {
	cells := [][]string{{"speed", "tokens/s", "PyTorch", "ratio", "of GEMM peak", "of floor", "GiB", "PyTorch", "plan", "p95/p50", "waits", "late loads", "start s"}}
	for _, r := range races {
		peerSpeed, ratio, peerGiB, floor := "-", "-", "-", "-"
		if r.ours.FloorShare > 0 {
			floor = fmt.Sprintf("%.1f %%", 100*r.ours.FloorShare)
		}
		if r.theirs > 0 {
			peerSpeed, ratio = fmt.Sprintf("%.0f", r.theirs), fmt.Sprintf("%.3f", r.ours.TokensPerSecond/r.theirs)
			peerGiB = fmt.Sprintf("%.1f", r.theirGiB)
		} else if len(r.theirFailures) > 0 {
			peerSpeed = "failed"
		}
		device, plan := float64(r.ours.PeakMemory["device"])/gib, float64(r.ours.Plan.Memory.Total)/gib
		cells = append(cells, []string{
			fmt.Sprintf("%s, best of %d", strings.Replace(r.pair, "@", " ", 1), r.rounds), fmt.Sprintf("%.0f", r.ours.TokensPerSecond), peerSpeed, ratio,
			fmt.Sprintf("%.0f %%", 100*r.ours.MFU), floor, fmt.Sprintf("%.1f", device), peerGiB,
			fmt.Sprintf("%.1f (%+.1f %%)", plan, 100*(device/plan-1)), fmt.Sprintf("%.3f", r.spread),
			fmt.Sprintf("%g", r.waits), strconv.FormatInt(r.late, 10), fmt.Sprintf("%.2f", r.startSeconds),
		})
	}
	return cells
}
