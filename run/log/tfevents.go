package runlog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"apr/internal/fault"
)

// Scalar is one number of a TensorBoard curve.
type Scalar struct {
	Tag   string
	Value float64 // written as float32, TensorBoard's simple_value
}

// tfEvents writes a TensorBoard event file: records of
//
//	u64 length · u32 masked CRC of the length · data · u32 masked CRC of the data   (little-endian)
//
// where data is a protocol buffer Event{1 wall_time double, 2 step int64, 3 file_version string, 5 summary}.
// The file is made at the first event; each process that writes a run adds a file, which TensorBoard reads in order of
// their names. Steps that a resumed run does again stand in both.
type tfEvents struct {
	place func(name string) (path string, err error)
	f     *os.File
	w     *bufio.Writer
}

// add appends one event.
func (t *tfEvents) add(at time.Time, step int, scalars []Scalar) error {
	if len(scalars) == 0 {
		return nil
	}
	if t.f == nil {
		if err := t.create(at); err != nil {
			return err
		}
	}
	return t.write(scalarEvent(wall(at), step, scalars))
}

// create makes the file under a name that no other has, and says what version it is of.
func (t *tfEvents) create(at time.Time) error {
	host, _ := os.Hostname() // an unnamed host is no reason to fail
	host = strings.Map(func(r rune) rune {
		if r == '/' || r < ' ' {
			return '_'
		}
		return r
	}, host)
	for i := 0; ; i++ {
		name := fmt.Sprintf("events.out.tfevents.%010d.%s", at.Unix(), host)
		if i > 0 {
			name += fmt.Sprintf(".%d", i)
		}
		path, err := t.place(name)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return fault.In(fault.IO, path, "cannot be created").Because(err)
		}
		t.f, t.w = f, bufio.NewWriterSize(f, 1<<16)
		return t.write(versionEvent(wall(at)))
	}
}

func (t *tfEvents) write(event []byte) error {
	if _, err := t.w.Write(tfRecord(event)); err != nil {
		return fault.In(fault.IO, t.f.Name(), "cannot be written").Because(err)
	}
	return nil
}

func (t *tfEvents) flush() error {
	if t.f == nil {
		return nil
	}
	if err := t.w.Flush(); err != nil {
		return fault.In(fault.IO, t.f.Name(), "cannot be written").Because(err)
	}
	return nil
}

func (t *tfEvents) close() error {
	if t.f == nil {
		return nil
	}
	return errors.Join(t.flush(), t.f.Close())
}

// wall is a time in seconds since 1970.
func wall(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// versionEvent is the first event of a file.
func versionEvent(wall float64) []byte {
	return protoBytes(protoDouble(nil, 1, wall), 3, []byte("brain.Event:2"))
}

// scalarEvent is Event{wall_time, step, Summary{repeated Value{1 tag, 2 simple_value}}}.
func scalarEvent(wall float64, step int, scalars []Scalar) []byte {
	var summary []byte
	for _, s := range scalars {
		value := protoBytes(nil, 1, []byte(s.Tag))
		value = binary.LittleEndian.AppendUint32(append(value, 2<<3|5), math.Float32bits(float32(s.Value)))
		summary = protoBytes(summary, 1, value)
	}
	event := binary.AppendUvarint(append(protoDouble(nil, 1, wall), 2<<3), uint64(step))
	return protoBytes(event, 5, summary)
}

func protoDouble(b []byte, field byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, field<<3|1), math.Float64bits(v))
}

func protoBytes(b []byte, field byte, v []byte) []byte {
	return append(binary.AppendUvarint(append(b, field<<3|2), uint64(len(v))), v...)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC is TFRecord's checksum: CRC-32C rotated right by 15 bits plus a constant, so that a checksum of data that holds
// checksums is no special case.
func maskedCRC(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// tfRecord frames data.
func tfRecord(data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, len(data)+16), uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(b))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, maskedCRC(data))
}

// scalars are the curves of a step, one tag a leg: "loss/student", "loss/control". What was not computed is left out; a
// loss that was not finite is written as it is.
func (s Step) scalars() []Scalar {
	var all []Scalar
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"loss", float64(s.Loss)}, {"kl", float64(s.KL)}, {"ce", float64(s.CE)}, {"grad_norm", float64(s.GradNorm)}, {"lr", s.LR},
		{"tokens_per_second", float64(s.TokensPerSecond)}, {"memory_bytes", float64(s.MemoryBytes)},
	} {
		if s.Finite && (math.IsNaN(v.value) || math.IsInf(v.value, 0)) {
			continue
		}
		all = append(all, Scalar{v.name + "/" + s.Leg, v.value})
	}
	return all
}
