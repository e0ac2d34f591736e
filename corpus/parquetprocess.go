package corpus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"apr/internal/fault"
)

// A Parquet file is parsed in a child process, for a hostile one can make the library allocate, loop or crash as no
// recover can stop. The child is this same program under the name parquetProcess; it gets the open file and nothing
// else, and answers with frames:
//
//	kind u8, length u32 little-endian, JSON of a reply
const parquetProcess = "apr-parquet-reader"

// parquetMemory is how many bytes of private memory the child may have. Tests make it smaller.
var parquetMemory uint64 = 2 << 30

// Limits of the talk with the child.
const (
	parquetStall = 2 * time.Minute // between two frames
	maxFrame     = 6*maxRecord + 4096
)

// reply is the content of a frame: a document, a bad record, the end, or a failure of the whole file.
type reply struct {
	Text     *string   `json:"text,omitempty"`
	Messages []Message `json:"messages,omitempty"`
	Form     form      `json:"form,omitempty"`
	Bad      *problem  `json:"bad,omitempty"`
	Failed   *problem  `json:"failed,omitempty"`
	End      bool      `json:"end,omitempty"`
}

// problem is a fault of kind Format between processes.
type problem struct{ Msg, Hint, ID string }

func newProblem(e *fault.Error) *problem {
	msg := e.Msg
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return &problem{msg, e.Hint, e.ID}
}

func (p *problem) fault(path string) *fault.Error {
	e := fault.In(fault.Format, path, "%s", p.Msg).WithID(p.ID)
	e.Hint = p.Hint
	return e
}

func init() {
	if len(os.Args) == 4 && os.Args[0] == parquetProcess {
		os.Exit(parquetMain(os.Args[1], os.Args[2], os.Args[3]))
	}
}

// parquetMain is the child: it reads file descriptor 3 and writes frames to standard output.
func parquetMain(memory, textField, messagesField string) int {
	limit, err := strconv.ParseUint(memory, 10, 64)
	if err == nil {
		err = limitMemory(limit)
		debug.SetMemoryLimit(int64(limit / 4 * 3)) // collect garbage rather than meet the limit
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f := os.NewFile(3, "parquet")
	info, err := f.Stat()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := bufio.NewWriterSize(os.Stdout, 256<<10)
	send := func(r reply) error { return writeFrame(w, r) }
	err = parquetRows(f, info.Size(), ReadOptions{TextField: textField, MessagesField: messagesField}, send)
	last := reply{End: true}
	if err != nil {
		var e *fault.Error
		if !errors.As(err, &e) {
			e = damaged(err)
		}
		last = reply{Failed: newProblem(e)}
	}
	if send(last) != nil || w.Flush() != nil {
		return 1
	}
	return 0
}

// parquetRows sends a file's rows; a panic of the library becomes an error.
func parquetRows(f io.ReaderAt, size int64, opt ReadOptions, send func(reply) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = damaged(fmt.Errorf("%v", p))
		}
	}()
	return readParquet(f, size, opt, func(d Document, bad *fault.Error) error {
		switch {
		case bad != nil:
			return send(reply{Bad: newProblem(bad)})
		case d.Messages != nil:
			return send(reply{Messages: d.Messages, Form: d.form})
		}
		return send(reply{Text: &d.Text, Form: d.form})
	})
}

func writeFrame(w io.Writer, r reply) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var head [4]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(b)))
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// parquet reads a Parquet file through a child process.
func (r *reader) parquet(path string, f *os.File, size int64) error {
	ctx, kill := context.WithCancel(r.ctx)
	defer kill()
	self, err := os.Executable()
	if err != nil {
		return fault.New(fault.Other, "this program's own file is unknown").Because(err).WithID("E-PARQUET-020")
	}
	var stderr tail
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = []string{parquetProcess, strconv.FormatUint(parquetMemory, 10), r.opt.TextField, r.opt.MessagesField}
	cmd.Env = []string{"GOMAXPROCS=2"}
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fault.New(fault.Other, "no pipe").Because(err).WithID("E-PARQUET-021")
	}
	if err := cmd.Start(); err != nil {
		return fault.New(fault.Other, "the process that reads Parquet does not start").Because(err).WithID("E-PARQUET-022")
	}
	err = r.parquetFrames(path, out, kill)
	kill()
	_ = cmd.Wait() // the frames say how it ended: a child that ends without the last one has failed
	if errors.Is(err, errChild) {
		if r.ctx.Err() != nil {
			return r.ctx.Err()
		}
		return fault.In(fault.Format, path, "the Parquet reader gave up: %s", stderr.reason()).
			WithHint("the file is damaged, or asks for more than %d MiB of memory at once", parquetMemory>>20).WithID("E-PARQUET-023")
	}
	if err != nil {
		return err
	}
	h := newHashed(path, io.NewSectionReader(f, 0, 1<<62), size)
	return r.finish(path, h)
}

// errChild says that the child ended or stalled without a word.
var errChild = errors.New("parquet reader")

// parquetFrames takes the child's frames until the last.
func (r *reader) parquetFrames(path string, out io.Reader, kill func()) error {
	br := bufio.NewReaderSize(out, 256<<10)
	for row := int64(1); ; row++ {
		stall := time.AfterFunc(parquetStall, kill)
		m, err := readFrame(br)
		stall.Stop()
		switch {
		case err != nil:
			return err
		case m.End:
			return nil
		case m.Failed != nil:
			return m.Failed.fault(path)
		}
		r.report.Records++
		if m.Bad != nil {
			r.bad(m.Bad.fault(path).At("row %d", row))
			continue
		}
		d := Document{Messages: m.Messages, Path: path, Record: row, form: m.Form}
		if m.Text != nil {
			d.Text = *m.Text
		}
		if err := r.document(d); err != nil {
			return err
		}
	}
}

func readFrame(br *bufio.Reader) (reply, error) {
	var head [4]byte
	if _, err := io.ReadFull(br, head[:]); err != nil {
		return reply{}, errChild
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxFrame {
		return reply{}, errChild
	}
	var b bytes.Buffer // grows with what comes, not with what is claimed
	if _, err := io.CopyN(&b, br, int64(n)); err != nil {
		return reply{}, errChild
	}
	var m reply
	if err := json.Unmarshal(b.Bytes(), &m); err != nil {
		return reply{}, errChild
	}
	return m, nil
}

// tail keeps the first line of what the child says when it dies, and passes over the rest.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	if room := 1024 - len(t.b); room > 0 {
		t.b = append(t.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (t *tail) reason() string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(t.b)), "\n")
	if line == "" {
		return "no progress, or ended from outside"
	}
	return fmt.Sprintf("%q", line)
}
