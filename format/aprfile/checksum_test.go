package aprfile

import (
	"bytes"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"apr/internal/contracttest"
)

// counted counts the bytes that are read.
type counted struct {
	*bytes.Reader
	n atomic.Int64
}

func (c *counted) ReadAt(b []byte, off int64) (int, error) {
	n, err := c.Reader.ReadAt(b, off)
	c.n.Add(int64(n))
	return n, err
}

// Whatever part of a file was read before, in whatever order, in pieces that overlap, by however many readers: the checksum
// is that of all bytes, and nothing is read for it that one reader has read.
func TestChecksumOfWhatWasRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		data := make([]byte, 1+rng.IntN(5000))
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		end := int64(rng.IntN(len(data) + 1))
		file := &counted{Reader: bytes.NewReader(data)}
		c := &summed{file: file, end: end}
		read, unread := make([]bool, end), end
		var pieces [][2]int
		for range rng.IntN(20) {
			from := rng.IntN(len(data))
			to := from + rng.IntN(len(data)-from+1)
			pieces = append(pieces, [2]int{from, to})
			for i := from; i < min(to, int(end)); i++ {
				if !read[i] {
					read[i] = true
					unread--
				}
			}
		}
		readers := 1 + rng.IntN(4)
		var wg sync.WaitGroup
		for r := range readers {
			wg.Go(func() {
				for i := r; i < len(pieces); i += readers {
					b := make([]byte, pieces[i][1]-pieces[i][0])
					if _, err := c.ReadAt(b, int64(pieces[i][0])); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		before := file.n.Load()
		got, err := c.sum()
		if want := crc32.ChecksumIEEE(data[:end]); err != nil || got != want {
			t.Fatalf("%d bytes, pieces %v: checksum %08x, %v; want %08x", end, pieces, got, err, want)
		}
		if again := file.n.Load() - before; readers == 1 && again != unread {
			t.Fatalf("%d bytes were read for the checksum, %d had not been", again, unread)
		}
		before = file.n.Load()
		if again, err := c.sum(); err != nil || again != got || file.n.Load() != before {
			t.Fatalf("the second time: %08x, %v, %d bytes read", again, err, file.n.Load()-before)
		}
		contracttest.Cases(t, 1)
	}
}

// The first reading of a byte counts: it is what was used.
func TestChecksumIsOfTheFirstReading(t *testing.T) {
	data := []byte("as it was read")
	c := &summed{file: bytes.NewReader(data), end: int64(len(data))}
	want := crc32.ChecksumIEEE(data)
	if _, err := io.ReadAll(io.NewSectionReader(c, 0, c.end)); err != nil {
		t.Fatal(err)
	}
	data[3] ^= 1
	if got, err := c.sum(); err != nil || got != want {
		t.Errorf("checksum %08x, %v; want %08x", got, err, want)
	}
}

// A file that ends before its checksum does is no file.
func TestChecksumOfACutFile(t *testing.T) {
	c := &summed{file: bytes.NewReader(make([]byte, 99)), end: 100}
	if got, err := c.sum(); err != io.ErrUnexpectedEOF {
		t.Errorf("checksum %08x, %v", got, err)
	}
}

// BenchmarkChecksum reads in rows of a matrix and in large pieces, with and without the checksum.
func BenchmarkChecksum(b *testing.B) {
	data := make([]byte, 64<<20)
	for _, bb := range []struct {
		name  string
		piece int
		sum   bool
	}{{"read/2KiB", 2 << 10, false}, {"sum/2KiB", 2 << 10, true}, {"read/1MiB", 1 << 20, false}, {"sum/1MiB", 1 << 20, true}} {
		b.Run(bb.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			buf := make([]byte, bb.piece)
			for b.Loop() {
				var r io.ReaderAt = bytes.NewReader(data)
				if bb.sum {
					r = &summed{file: r, end: int64(len(data))}
				}
				for at := 0; at < len(data); at += bb.piece {
					if _, err := r.ReadAt(buf, int64(at)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
