package distill

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"apr/arch"
	"apr/internal/atomicfile"
	"apr/internal/fault"
)

// DiskNeed is what a run writes, in bytes.
type DiskNeed struct {
	Checkpoints int64  `json:"checkpoints"` // at the highest point: those kept, and one being written, of each leg
	Outputs     int64  `json:"outputs"`
	Cache       int64  `json:"teacher_cache,omitempty"` // what the teacher says in the first epoch
	Total       int64  `json:"total"`
	Available   uint64 `json:"available"` // 0: unknown
}

// diskNeed adds up what a run of so many steps writes: checkpoints of float32 weights and two moments, the student
// twice in float32, and once more where it is exported to. With 0 steps it is not known how many there are.
func (in *inputs) diskNeed(c Config, steps int) (d DiskNeed) {
	params, trained := in.studentConfig.Parameters(), in.trainedValues()
	kept := min(int64(c.KeepCheckpoints), math.MaxInt64-1)
	highest := kept + 1 // while one more is written
	if steps > 0 {
		kept, highest = min(kept, int64(steps)), min(highest, int64(steps))
	}
	if c.Control || in.control.On {
		highest = atMost(kept, 1, highest)
	}
	d.Checkpoints = times(in.checkpointBytes(c), highest)
	d.Outputs = 4 * params * studentCopies(c)
	if in.adapter != nil {
		d.Outputs += 4 * trained
	}
	if in.made != nil {
		d.Cache = in.made.Bytes
	}
	d.Total = atMost(atMost(d.Checkpoints, 1, d.Outputs), 1, d.Cache)
	d.Available, _ = freeFor(c.Output)
	return d
}

// checkpointBytes is the size of a checkpoint: what trains and two moments in float32, and blocks.
func (in *inputs) checkpointBytes(c Config) int64 {
	n := 12 * (in.trainedValues() + c.Guide.elements(in.studentConfig, in.teacher.Config))
	for _, s := range arch.Slots(in.studentConfig) {
		if d, ok := in.types[s.Name]; ok && len(s.Shape) > 1 {
			cols := s.Shape[len(s.Shape)-1]
			n += s.Elements() / int64(max(cols, 1)) * d.RowBytes(cols)
		}
	}
	return n
}

// times multiplies what is not negative, and stops at the largest number.
func times(a, b int64) int64 {
	if n, ok := product(uint64(a), uint64(b)); ok && n <= math.MaxInt64 {
		return int64(n)
	}
	return math.MaxInt64
}

// atMost is a·b + c, and stops at the largest number.
func atMost(a, b, c int64) int64 {
	if n := times(a, b); n <= math.MaxInt64-c {
		return n + c
	}
	return math.MaxInt64
}

// freeFor returns how many bytes may be written below a path that need not exist; false: it is not known.
func freeFor(path string) (free uint64, known bool) {
	full, err := filepath.Abs(path)
	if err != nil {
		return 0, false
	}
	for dir := full; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return atomicfile.Free(dir)
		}
		if dir == filepath.Dir(dir) {
			return 0, false
		}
	}
}

// checkDisk refuses a run whose checkpoints and outputs do not fit the disk, before its first step.
func (in *inputs) checkDisk(c Config, steps int) error {
	need := in.diskNeed(c, steps)
	free, known := freeFor(c.Output)
	if there, ok := freeFor(filepath.Dir(c.Export)); c.Export != "" && ok && there != free { // another disk
		export := DiskNeed{Outputs: need.Outputs / max(1, studentCopies(c))}
		export.Total = export.Outputs
		need.Outputs -= export.Outputs
		need.Total -= export.Outputs
		if err := export.refuse(filepath.Dir(c.Export), there, true, 0); err != nil {
			return err
		}
	}
	return need.refuse(c.Output, free, known, bytesBelow(c.Output))
}

// studentCopies is how often a run writes its student: in two forms, and to where it is exported.
func studentCopies(c Config) int64 {
	if c.LoRA != nil && !c.LoRA.Merge {
		return 0
	}
	if c.Export != "" {
		return 3
	}
	return 2
}

// refuse is the fault of a run directory with too little room. What an earlier attempt wrote there is replaced, and
// so counts as free.
func (d DiskNeed) refuse(dir string, free uint64, known bool, written int64) error {
	need := d.Total - min(d.Total, written)
	if !known || uint64(need) <= free {
		return nil
	}
	once := ""
	if d.Cache > 0 {
		once = fmt.Sprintf(", %s for the teacher's cache", megabytes(d.Cache))
	}
	return fault.In(fault.IO, dir, "no space left for the run: %s needed (%s for checkpoints, %s for the student%s), "+
		"%s free",
		megabytes(need), megabytes(d.Checkpoints), megabytes(d.Outputs), once, megabytes(int64(free))).
		WithHint("make room, name an --output on another disk, or lower --keep-checkpoints").WithID("E-DISTILL-050")
}

// megabytes prints a size in decimal units, as disks have them.
func megabytes(n int64) string {
	if n >= 1e10 {
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

// bytesBelow adds up the files of checkpoints and outputs of a run directory; 0 if there is none.
func bytesBelow(run string) (n int64) {
	checkpoints, _ := filepath.Glob(filepath.Join(run, checkpointFolder+"*")) // the pattern is well formed
	for _, folder := range append(checkpoints, filepath.Join(run, "student"), filepath.Join(run, "student.apr"),
		filepath.Join(run, adapterFolder), filepath.Join(run, onceFolder)) {
		_ = filepath.WalkDir(folder, func(_ string, d os.DirEntry, err error) error {
			if err != nil {
				return nil // what cannot be seen is not counted
			}
			if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
				n += info.Size()
			}
			return nil
		})
	}
	return n
}
