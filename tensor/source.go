package tensor

import "io"

// Source is a tensor about to be written to a file: its description, and how its payload is made. Writers stream
// payloads one after another, so a model larger than memory can be written.
type Source struct {
	Info
	// Payload writes exactly Size bytes, from the first to the last.
	Payload func(w io.Writer) error
	// Ordered says that the columns have the order that the file to be written wants, not that of the model: blocks were made of
	// them so, and could not be cut.
	Ordered bool
}

// Source returns the tensor as one to be written elsewhere, unchanged.
func (s Stored) Source() Source {
	return Source{Info: s.Info, Payload: func(w io.Writer) error {
		_, err := io.CopyBuffer(w, io.NewSectionReader(s, 0, s.Size), make([]byte, max(1, min(s.Size, 1<<20))))
		return err
	}}
}

// BytesSource returns a tensor whose payload is at hand; info.Size is set to its length.
func BytesSource(info Info, payload []byte) Source {
	info.Size = int64(len(payload))
	return Source{Info: info, Payload: func(w io.Writer) error {
		_, err := w.Write(payload)
		return err
	}}
}
