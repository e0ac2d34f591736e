package stored

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"apr/internal/fault"
	"apr/tensor"
)

func TestCheckName(t *testing.T) {
	for _, good := range []string{"w", "model.layers.0.mlp.up_proj.weight", "é", "a/b", "a..b", "..a", "ab:c", strings.Repeat("x", 256)} {
		if err := CheckName(good, MaxName); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for name, want := range map[string]string{
		"":                       "tensor name is empty",
		strings.Repeat("x", 257): "tensor name of 257 bytes is over the limit of 256",
		"a\xff":                  "tensor name is not UTF-8",
		"a\x1b[2J":               "tensor name has a control character",
		"a\u0085":                "tensor name has a control character",
		"/a":                     "tensor name is an absolute path",
		`\a`:                     "tensor name is an absolute path",
		"C:a":                    "tensor name is an absolute path",
		"..":                     `tensor name has a ".." component`,
		`a\..\b`:                 `tensor name has a ".." component`,
		"a/..":                   `tensor name has a ".." component`,
	} {
		if err := CheckName(name, MaxName); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", name, err, want)
		}
	}
}

func TestSection(t *testing.T) {
	s := &Section{File: strings.NewReader("..abcd"), Path: "f", Name: "w", Offset: 2, Size: 6} // two bytes are cut
	for _, c := range []struct {
		name      string
		off       int64
		n         int
		want, err string
	}{
		{"inside", 1, 2, "bc", ""},
		{"behind", 6, 1, "", "EOF"},
		{"cut", 3, 2, "d", `f: tensor "w", offset 6: file ends inside the payload; it was shortened after it was opened [E-FILE-021]`},
		{"negative", -1, 1, "", `f: tensor "w": negative offset -1`},
	} {
		p := make([]byte, c.n)
		n, err := s.ReadAt(p, c.off)
		if string(p[:n]) != c.want || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %q, %v", c.name, p[:n], err)
		}
	}
	s.Size = 4
	p := make([]byte, 10)
	if n, err := s.ReadAt(p, 2); n != 2 || err != io.EOF {
		t.Errorf("over the end: %d, %v", n, err)
	}
	s.File = failing{}
	if _, err := s.ReadAt(p[:1], 0); fault.KindOf(err) != fault.IO {
		t.Errorf("failing disk: %v", err)
	}
}

type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, errors.New("disk on fire") }

func TestEmit(t *testing.T) {
	for _, c := range []struct{ name, payload, err string }{
		{"exact", "abcd", ""},
		{"short", "abc", `tensor "w": 1 of 4 payload bytes were not produced`},
		{"long", "abcde", `tensor "w": more payload was produced than the shape holds`},
	} {
		src := tensor.BytesSource(tensor.Info{Name: "w"}, []byte(c.payload))
		src.Size = 4
		var b bytes.Buffer
		if err := Emit(&b, src); (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestSet(t *testing.T) {
	s := NewSet([]tensor.Stored{{Info: tensor.Info{Name: "b"}}, {Info: tensor.Info{Name: "a"}}})
	if s.Tensors()[0].Name != "a" {
		t.Error("not sorted")
	}
	if b, ok := s.Tensor("b"); !ok || b.Name != "b" {
		t.Error("b not found")
	}
	if _, ok := s.Tensor("c"); ok {
		t.Error("c found")
	}
}
