package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/andybalholm/brotli"
)

// Pack returns the PTX of a module as it is stored: registers by age, then brotli, together a seventeenth of the text.
//
// The number of a register says nothing that the compressor could foresee, so that two copies of one loop differ in every
// line. Its age does: %r0 is the last of its class that was new, %r3 came three before it, and what was not there yet is %r+
// (one more than the new one before it) or %r~n (n more). A declaration, as .reg .b32 %r<9>, begins its class anew. Text that
// does not come back as it was is an error.
func Pack(text []byte) ([]byte, error) {
	var packed bytes.Buffer
	z := brotli.NewWriterLevel(&packed, brotli.BestCompression)
	_, err := z.Write(rewriteRegisters(text, (*registers).age))
	if err = errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	if back, err := Unpack(packed.Bytes()); err != nil || !bytes.Equal(back, text) {
		return nil, errors.Join(fmt.Errorf("the text has registers of a form that Pack does not know"), err)
	}
	return packed.Bytes(), nil
}

// Unpack returns the text of which Pack made the stream.
func Unpack(packed []byte) ([]byte, error) {
	text, err := io.ReadAll(brotli.NewReader(bytes.NewReader(packed)))
	if err != nil {
		return nil, err
	}
	return rewriteRegisters(text, (*registers).number), nil
}

// registers are those of one class in one kernel, in the order in which they appear.
type registers struct {
	numbers []int       // by order
	order   map[int]int // of a number, where ages are made
}

// rewriteRegisters passes what follows each %class to a function, which reads its head and writes its other form.
func rewriteRegisters(text []byte, rewrite func(r *registers, out, in []byte) (to, rest []byte)) []byte {
	out := make([]byte, 0, 2*len(text))
	classes := map[string]*registers{}
	for {
		at := bytes.IndexByte(text, '%') + 1
		if at == 0 {
			return append(out, text...)
		}
		end := at
		for end < len(text) && text[end] >= 'a' && text[end] <= 'z' {
			end++
		}
		class := text[at:end]
		out, text = append(out, text[:end]...), text[end:]
		if len(class) == 0 || len(text) == 0 {
			continue
		}
		if classes[string(class)] == nil || text[0] == '<' {
			classes[string(class)] = &registers{order: map[int]int{}}
		}
		out, text = rewrite(classes[string(class)], out, text)
	}
}

// age turns a number into an age.
func (r *registers) age(out, in []byte) (to, rest []byte) {
	n, rest, ok := readInteger(in)
	if !ok {
		return out, in
	}
	if i, seen := r.order[n]; seen {
		return strconv.AppendInt(out, int64(len(r.numbers)-1-i), 10), rest
	}
	step := n - r.last()
	r.order[n] = len(r.numbers)
	r.numbers = append(r.numbers, n)
	if step == 1 {
		return append(out, '+'), rest
	}
	return strconv.AppendInt(append(out, '~'), int64(step), 10), rest
}

// number turns an age into a number.
func (r *registers) number(out, in []byte) (to, rest []byte) {
	switch in[0] {
	case '+':
		return r.add(out, 1), in[1:]
	case '~':
		if step, rest, ok := readInteger(in[1:]); ok {
			return r.add(out, step), rest
		}
	default:
		if age, rest, ok := readInteger(in); ok && age >= 0 && age < len(r.numbers) {
			return strconv.AppendInt(out, int64(r.numbers[len(r.numbers)-1-age]), 10), rest
		}
	}
	return out, in
}

func (r *registers) add(out []byte, step int) []byte {
	r.numbers = append(r.numbers, r.last()+step)
	return strconv.AppendInt(out, int64(r.last()), 10)
}

func (r *registers) last() int {
	if len(r.numbers) == 0 {
		return 0
	}
	return r.numbers[len(r.numbers)-1]
}

// readInteger reads a decimal integer at the head of a text.
func readInteger(in []byte) (n int, rest []byte, ok bool) {
	end := 0
	if len(in) > 0 && in[0] == '-' {
		end++
	}
	for end < len(in) && in[end] >= '0' && in[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(string(in[:end]))
	return n, in[end:], err == nil
}
