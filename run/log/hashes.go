package runlog

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// HashRecords returns the SHA-256 of each record in a run directory by its name: manifests, steps, events and samples, as far as
// there are any. The receipt, which holds these hashes, is not among them, nor is what may be written after it.
func HashRecords(dir string) (map[string]string, error) {
	names := []string{manifestFile, "steps.jsonl", "events.jsonl", SamplesFile}
	for i := 1; ; i++ {
		name := fmt.Sprintf(resumedManifest, i)
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			break // as readManifests numbers them
		}
		names = append(names, name)
	}
	sums := map[string]string{}
	for _, name := range names {
		sum, err := hashRecord(filepath.Join(dir, name))
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sums[name] = sum
	}
	return sums, nil
}

func hashRecord(path string) (string, error) {
	f, _, err := readfile.Open(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
