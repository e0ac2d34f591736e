package distill

import (
	"crypto/sha256"
	"errors"
	"path/filepath"
	"time"

	"apr/internal/disk"
)

// window is when the first checkpoint of a leg may come before --checkpoint-interval: a run that is killed early has
// something to go on from, and one that ends before the window has its last checkpoint.
type window struct {
	from, until time.Duration
	measure     func(checkpoints, int64) time.Duration // what a checkpoint of so many bytes costs
}

var firstWindow = window{20 * time.Second, 2 * time.Minute, checkpoints.measure}

// firstShare is the most that the first checkpoint may take of the time since its leg began.
const firstShare = 0.01

// dueFirst reports whether the leg should write its first checkpoint now: it is in the window, and a checkpoint is
// cheap for the time that it secures. What one costs is measured once, by a sample.
func (l *leg) dueFirst() bool {
	r, since := l.run, time.Since(l.began)
	if l.saved.step >= 0 || r.CheckpointInterval <= 0 || since < r.first.from || since > r.first.until {
		return false
	}
	if l.cost == 0 {
		l.cost = r.first.measure(l.folder(), bytesNeeded(trainingTensors(l.student, r.stream)))
	}
	return l.cost.Seconds() <= firstShare*since.Seconds()
}

// never is the cost of a checkpoint that cannot be measured.
const never = time.Duration(1<<63 - 1)

// sampleBytes is how much is written to learn what a checkpoint costs.
const sampleBytes = 16 << 20

// measure writes, hashes and syncs a sample in the folder of checkpoints and returns the time that a checkpoint of so
// many bytes takes. A disk that fails is left to the checkpoint that comes in its time.
func (c checkpoints) measure(bytes int64) time.Duration {
	if free, ok := c.disk.Free(filepath.Dir(c.dir)); c.makeFolder() != nil || ok && free < uint64(bytes) {
		return never
	}
	sample := min(bytes, sampleBytes)
	block := make([]byte, sample)
	for i := range block {
		block[i] = byte(i * 2654435761 >> 11) // no disk compresses it
	}
	if c.alive != nil {
		c.alive("measuring the disk for checkpoints")
	}
	name, start := filepath.Join(c.dir, "sample"+tempSuffix), time.Now()
	f, err := c.disk.Create(name)
	if err != nil {
		return never
	}
	_, err = f.Write(block)
	sha256.Sum256(block)
	err = errors.Join(err, f.Sync(), f.Close(), c.disk.SyncDir(c.dir))
	took := time.Since(start)
	if err = errors.Join(err, disk.RemoveAll(c.disk, name)); err != nil {
		return never
	}
	return max(1, time.Duration(float64(took)*float64(bytes)/float64(sample)))
}
