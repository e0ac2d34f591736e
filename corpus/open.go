package corpus

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// maxWindow is the most that a compressed file may make its reader remember: zstd --long=27, twice xz -9.
const maxWindow = 128 << 20

// window returns the most that a zstd file of size bytes may make its reader remember. The library reserves it on the
// claim alone, so that it grows with the file: 60 MiB and four times the size, up to maxWindow.
func window(size int64) uint64 { return uint64(min(maxWindow, 60<<20+4*min(size, maxWindow))) }

// foreign are magic numbers of what is neither text nor a compression read here.
var foreign = []struct{ magic, name string }{
	{"PK\x03\x04", "a zip archive"}, {"PK\x05\x06", "a zip archive"}, {"BZh", "compressed by bzip2"},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive"}, {"\x04\x22\x4d\x18", "compressed by lz4"}, {"Rar!\x1a", "a rar archive"},
	{"\x80\x02", "a pickle"}, {"\x80\x03", "a pickle"}, {"\x80\x04", "a pickle"}, {"\x80\x05", "a pickle"},
	{"PAR1", "Parquet"}, {"GGUF", "a GGUF model"},
}

// decompressed wraps src by the compression that its first bytes show. what names it, "" for none; done ends it.
// f is src's file, at its start.
func decompressed(path string, f *os.File, src io.Reader) (r *bufio.Reader, what string, done func(), err error) {
	br := bufio.NewReaderSize(src, 64<<10)
	head, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, "", nil, streamFault(path, "", err)
	}
	done = func() {}
	var plain io.Reader
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		what = "gzip"
		plain, err = gzip.NewReader(br)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		what = "zstd"
		var z *zstd.Decoder
		var info os.FileInfo
		if info, err = f.Stat(); err != nil {
			return nil, "", nil, readfile.Fault(path, err)
		}
		z, err = zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window(info.Size())), zstd.WithDecoderLowmem(true))
		if err == nil {
			plain, done = z, z.Close
		}
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		what = "xz"
		if err = checkXZ(f); err == nil {
			plain, err = xz.NewReader(br)
		}
	default:
		for _, m := range foreign {
			if bytes.HasPrefix(head, []byte(m.magic)) {
				return nil, "", nil, fault.In(fault.Format, path, "the content is %s, not what the name says", m.name).
					WithHint("unpack it, or give the file its right name").WithID("E-CORPUS-050")
			}
		}
		return br, "", done, nil
	}
	if err != nil {
		done()
		return nil, "", nil, brokenCompression(path, what, err)
	}
	return bufio.NewReaderSize(plain, 64<<10), what, done, nil
}

// streamFault describes a failed read of a stream compressed by what; "" for none.
func streamFault(path, what string, err error) error {
	var e *fault.Error
	if errors.As(err, &e) {
		return err
	}
	var p *os.PathError
	if what == "" || errors.As(err, &p) {
		return readfile.Fault(path, err)
	}
	return brokenCompression(path, what, err)
}

func brokenCompression(path, what string, err error) error {
	return fault.In(fault.Format, path, "broken %s compression", what).Because(err).WithID("E-CORPUS-051")
}
