package trial

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// Log is a file of JSON lines: the settings that all its runs share, and then a record of each run, written as it
// ends.
type Log[S comparable, R any] struct {
	Settings S
	Records  []R

	path string
	mu   sync.Mutex
}

// ReadLog reads a log. A last line that was cut off is left out.
func ReadLog[S comparable, R any](path string) (*Log[S, R], error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l := &Log[S, R]{path: path}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var into any = &l.Settings
		var r R
		if i > 0 {
			into = &r
		}
		if err := json.Unmarshal(line, into); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, i+1, err)
		}
		if i > 0 {
			l.Records = append(l.Records, r)
		}
	}
	return l, nil
}

// OpenLog reads the log at path, or begins it there. A log of other settings is an error.
func OpenLog[S comparable, R any](path string, settings S) (*Log[S, R], error) {
	l, err := ReadLog[S, R](path)
	if errors.Is(err, fs.ErrNotExist) {
		l = &Log[S, R]{Settings: settings, path: path}
		return l, l.write(settings, os.O_CREATE|os.O_EXCL)
	}
	if err != nil {
		return nil, err
	}
	if l.Settings != settings {
		return nil, fmt.Errorf("%s holds runs of other settings, so give another file:\n  there %+v\n  asked %+v", path, l.Settings, settings)
	}
	return l, l.trim()
}

// trim removes a last line that was cut off.
func (l *Log[S, R]) trim() error {
	text, err := os.ReadFile(l.path)
	if err != nil {
		return err
	}
	return os.Truncate(l.path, int64(bytes.LastIndexByte(text, '\n')+1))
}

// Append adds a record.
func (l *Log[S, R]) Append(r R) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.write(r, 0); err != nil {
		return err
	}
	l.Records = append(l.Records, r)
	return nil
}

// All returns the records so far.
func (l *Log[S, R]) All() []R {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]R(nil), l.Records...)
}

func (l *Log[S, R]) write(value any, how int) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|how, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
