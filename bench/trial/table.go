package trial

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// Spread is the mean, and of several values half their range.
func Spread(values []float64, digits int) string {
	if len(values) == 0 {
		return ""
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		lo, hi = min(lo, v), max(hi, v)
	}
	text := strconv.FormatFloat(Mean(values), 'f', digits, 64)
	if len(values) > 1 {
		text += " ± " + strconv.FormatFloat((hi-lo)/2, 'f', digits, 64)
	}
	return text
}

// Mean is the mean of values.
func Mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Replace puts text between the marks <!-- NAME begin --> and <!-- NAME end --> of a document.
func Replace(path, name, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+" begin -->", "<!-- "+name+" end -->"
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s: no marks %s and %s", path, begin, end)
	}
	return os.WriteFile(path, []byte(head+begin+"\n\n"+strings.TrimSpace(text)+"\n\n"+end+tail), 0o644)
}

// Hash is the SHA-256 of a file, its first 16 hexadecimal digits.
func Hash(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
