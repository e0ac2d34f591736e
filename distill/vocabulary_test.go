package distill

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/cpu"
	"apr/format/aprfile"
	"apr/internal/contracttest"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/tensor"
	"apr/tokenizer"
)

// The rows of the embeddings of Qwen2.5 7B and 0.5B.
const largeRows, smallRows = 152064, 151936

// narrowTeacher writes a model with the vocabulary rows of Qwen2.5 7B and little else, whose tokenizer has real ids,
// and returns its path. In what follows the tokenizer of the student is the same.
func narrowTeacher(t *testing.T, real int) string {
	t.Helper()
	tok, err := tokenizer.Load("../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	d := tok.Data()
	parts := []string{"þ", "ÿ"} // bytes that no text has; each token joins one of those before and one of these, as merges do
	for i := 0; len(d.Vocabulary) < real; i++ {
		left, right := parts[i/2], parts[i%2]
		parts = append(parts, left+right)
		d.Vocabulary, d.TokenType = append(d.Vocabulary, left+right), append(d.TokenType, int(tokenizer.Normal))
		d.Merges = append(d.Merges, left+" "+right)
	}
	if tok, err = tokenizer.FromData("filled tokenizer", d); err != nil {
		t.Fatal(err)
	}
	return narrowModel(t, tok, largeRows)
}

// narrowModel writes a small model with random weights and a tokenizer, and returns its path.
func narrowModel(t *testing.T, tok *tokenizer.Tokenizer, rows int) string {
	t.Helper()
	c := arch.Qwen2(arch.Sizes{Hidden: 32, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 16, Width: 48, Vocab: rows,
		MaxPositions: 64, Theta: 1e4, Eps: 1e-6, Tied: true, BOS: -1, EOS: int(tok.EOS()), DType: tensor.F32, InitRange: 0.02,
	})
	var sources []tensor.Source
	rng := rand.New(rand.NewPCG(1, 2))
	for name, shape := range arch.Shapes(c) {
		n, _ := tensor.Elements(shape)
		data := make([]byte, 4*n)
		for i := range n {
			v := 0.02 * rng.NormFloat64()
			if strings.HasSuffix(name, "norm.weight") {
				v++
			}
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(v)))
		}
		sources = append(sources, tensor.Source{Info: tensor.Info{Name: name, DType: tensor.F32, Shape: shape, Size: int64(len(data))},
			Payload: func(w io.Writer) error { _, err := w.Write(data); return err }})
	}
	slices.SortFunc(sources, func(a, b tensor.Source) int { return strings.Compare(a.Name, b.Name) })
	path := filepath.Join(t.TempDir(), "model.apr")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := aprfile.Encode(f, sources, aprfile.Options{Metadata: modelfile.APRMetadata(c, tok, nil), Tied: true}); err != nil {
		t.Fatal(err)
	}
	return path
}

// watching is a device whose streams tell of the logits that they are given.
type watching struct {
	*cpu.Device
	lengths map[int]int    // of rows of logits and of their gradients in the loss: how many
	widths  map[string]int // of the temporaries for logits, with what lies between rows
}

func (w *watching) NewStream() device.Stream { return &watchingStream{w.Device.NewStream(), w} }

type watchingStream struct {
	device.Stream
	*watching
}

func (s *watchingStream) Temp(name string, c device.Component, d tensor.DType, rows, cols int) device.Tensor {
	if c == device.Logits {
		s.widths[name] = cols
	}
	return s.Stream.Temp(name, c, d, rows, cols)
}

func (s *watchingStream) Loss(grad, z, t, targets device.Tensor, spec device.LossSpec) {
	for _, x := range []device.Tensor{grad, z, t} {
		s.lengths[x.Cols] += x.Rows
	}
	s.Stream.Loss(grad, z, t, targets, spec)
}

// TestEveryLogitRow: a teacher of 152,064 rows teaches a student of 151,936. Every row of logits that reaches the loss,
// of the teacher, of the student and of the gradient, has 151,936 entries; no buffer is wider than that and the gap
// between rows; and the run says what it did.
func TestEveryLogitRow(t *testing.T) {
	c := in(t, tinyConfig(t))
	c.Teacher, c.StudentConfig, c.Steps, c.BatchSize, c.SeqLen = narrowTeacher(t, smallRows), filepath.Join(t.TempDir(), "config.json"), 2, 1, 8
	config := strings.Replace(tinyStudent, `"vocab_size":4096`, fmt.Sprintf(`"vocab_size":%d`, smallRows), 1)
	if err := os.WriteFile(c.StudentConfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	w := &watching{dev, map[int]int{}, map[string]int{}}
	r, err := Start(t.Context(), c, w, &quiet{}, func(*runlog.Manifest) {})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for cols, n := range w.lengths {
		if rows += n; cols != smallRows {
			t.Errorf("%d rows of logits have %d entries, want %d", n, cols, smallRows)
		}
	}
	for name, cols := range w.widths {
		if cols > rowLength(smallRows) || cols >= largeRows {
			t.Errorf("%s has %d columns", name, cols)
		}
	}
	contracttest.Cases(t, rows)
	events, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var said map[string]int
	for line := range strings.Lines(string(events)) {
		var e struct {
			Name   string
			Detail json.RawMessage
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Name == "vocabulary" {
			if err := json.Unmarshal(e.Detail, &said); err != nil {
				t.Error(err)
			}
		}
	}
	if fmt.Sprint(said) != fmt.Sprint(map[string]int{"effective_vocab": smallRows, "teacher_rows": largeRows, "student_rows": smallRows}) {
		t.Errorf("the run says %v", said)
	}
}
