package runlog

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// crcBitwise is CRC-32C by its definition: a division of polynomials, a bit at a time.
func crcBitwise(b []byte) uint32 {
	c := ^uint32(0)
	for _, x := range b {
		c ^= uint32(x)
		for range 8 {
			c = c>>1 ^ 0x82f63b78*(c&1)
		}
	}
	return ^c
}

// event is a decoded event; the decoder shares nothing with the writer.
type event struct {
	wall    float64
	step    uint64
	version string
	scalars []string // "tag value"
}

// field takes one field of a protocol buffer off b: its number, and its value as number or bytes.
func field(t *testing.T, b []byte) (number int, value uint64, data, rest []byte) {
	t.Helper()
	key, n := binary.Uvarint(b)
	if n <= 0 {
		t.Fatal("no field key")
	}
	b = b[n:]
	switch key & 7 {
	case 0:
		value, n = binary.Uvarint(b)
		return int(key >> 3), value, nil, b[n:]
	case 1:
		return int(key >> 3), binary.LittleEndian.Uint64(b), nil, b[8:]
	case 2:
		size, n := binary.Uvarint(b)
		b = b[n:]
		return int(key >> 3), 0, b[:size], b[size:]
	case 5:
		return int(key >> 3), uint64(binary.LittleEndian.Uint32(b)), nil, b[4:]
	}
	t.Fatalf("wire type %d", key&7)
	return 0, 0, nil, nil
}

// decode reads a whole event file and checks every checksum.
func decode(t *testing.T, path string) (events []event) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	masked := func(b []byte) uint32 { c := crcBitwise(b); return (c>>15 | c<<17) + 0xa282ead8 }
	for len(b) > 0 {
		size := binary.LittleEndian.Uint64(b)
		if got := binary.LittleEndian.Uint32(b[8:]); got != masked(b[:8]) {
			t.Fatalf("event %d: checksum of the length is %x", len(events), got)
		}
		data := b[12 : 12+size]
		if got := binary.LittleEndian.Uint32(b[12+size:]); got != masked(data) {
			t.Fatalf("event %d: checksum of the data is %x", len(events), got)
		}
		b = b[16+size:]
		var e event
		for len(data) > 0 {
			var n int
			var v uint64
			var sub []byte
			n, v, sub, data = field(t, data)
			switch n {
			case 1:
				e.wall = math.Float64frombits(v)
			case 2:
				e.step = v
			case 3:
				e.version = string(sub)
			case 5:
				for len(sub) > 0 {
					var value []byte
					_, _, value, sub = field(t, sub)
					_, _, tag, value := field(t, value)
					_, bits, _, _ := field(t, value)
					e.scalars = append(e.scalars, fmt.Sprint(string(tag), " ", math.Float32frombits(uint32(bits))))
				}
			}
		}
		events = append(events, e)
	}
	return events
}

func TestEventFile(t *testing.T) {
	path := t.TempDir()
	write := func(steps ...Step) {
		d, err := Open(path, false, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			if err := d.Step(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Scalar("val_nats_per_token/student", 300, 4.5); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	nan := Number(math.NaN())
	began := time.Now()
	write(Step{Leg: "student", Step: 299, LR: 0.5, Loss: 1.5, CE: 2, KL: 1, GradNorm: 3, Finite: true, TokensPerSecond: 1000, MemoryBytes: 4096},
		Step{Leg: "student", Step: 300, LR: 0.25, Loss: nan, CE: nan, KL: nan, GradNorm: nan, TokensPerSecond: 1000})
	write(Step{Leg: "control", LR: 0.5, Loss: 2, CE: 2, KL: nan, GradNorm: 3, Finite: true, TokensPerSecond: 1000})

	files, err := filepath.Glob(filepath.Join(path, "events.out.tfevents.*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("event files %v (%v), want one for each process", files, err)
	}
	slices.Sort(files)
	first, second := decode(t, files[0]), decode(t, files[1])
	if len(first) != 4 || first[0].version != "brain.Event:2" || first[0].step != 0 {
		t.Fatalf("first file %+v", first)
	}
	if d := first[1].wall - float64(began.UnixNano())/1e9; !(d > -1 && d < 60) {
		t.Errorf("wall time is %g s after the beginning", d)
	}
	for i, want := range []string{
		"299: loss/student 1.5, kl/student 1, ce/student 2, grad_norm/student 3, lr/student 0.5, tokens_per_second/student 1000, memory_bytes/student 4096",
		"300: loss/student NaN, kl/student NaN, ce/student NaN, grad_norm/student NaN, lr/student 0.25, tokens_per_second/student 1000, memory_bytes/student 0",
		"300: val_nats_per_token/student 4.5",
	} {
		if e := first[i+1]; fmt.Sprintf("%d: %s", e.step, strings.Join(e.scalars, ", ")) != want {
			t.Errorf("event %d: %d %v\nwant %s", i+1, e.step, e.scalars, want)
		}
	}
	if e := second[1]; strings.Contains(strings.Join(e.scalars, " "), "kl/control") {
		t.Errorf("a control has no divergence: %v", e.scalars)
	}
}

// Bytes written out by hand from the format's description; TensorBoard's own files begin with the same twelve.
func TestEventBytes(t *testing.T) {
	for name, c := range map[string]struct {
		event []byte
		want  string
	}{
		// length 24, checksum, double 1700000000.5, "brain.Event:2", checksum
		"version": {versionEvent(1700000000.5), "1800000000000000a37f4b22 0900002040fc54d941 1a0d 627261696e2e4576656e743a32"},
		"scalar":  {scalarEvent(1, 300, []Scalar{{"a", 1.5}}), "1800000000000000a37f4b22 09000000000000f03f 10ac02 2a0a 0a08 0a0161 150000c03f"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		got := tfRecord(c.event)
		if len(got) != len(want)+4 || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%s: %x\nwant %x and a checksum", name, got, want)
		}
	}
	// CRC-32C of "123456789" is e3069283, the check value of catalogues; rotated and shifted by hand.
	if got := maskedCRC([]byte("123456789")); got != 0xc78ab0e5 || crcBitwise([]byte("123456789")) != 0xe3069283 {
		t.Errorf("masked CRC is %x", got)
	}
}
