package distill

import (
	"io"
	"slices"

	"apr/device"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

// trainingTensors are weights and both moments of every part, and what is stored with the model but not trained, as
// float32.
func trainingTensors(m *model.Model, s device.Stream) []tensor.Source {
	var out []tensor.Source
	for _, p := range m.Parts() {
		for _, k := range companions {
			out = append(out, masterSource(m, s, p, k.prefix+p.Name, k.of))
		}
	}
	return append(append(out, storedTensors(m, s)...), m.FixedSources()...)
}

// storedPrefix precedes the name of a parameter whose blocks a checkpoint holds: scales are searched for now and then,
// so that blocks do not follow from the weights.
const storedPrefix = "blocks."

// storedTensors are the bytes of all blocks.
func storedTensors(m *model.Model, s device.Stream) (out []tensor.Source) {
	for _, p := range m.Params() {
		if len(p.Blocks) == 0 {
			continue
		}
		info := tensor.Info{Name: storedPrefix + p.Name, DType: tensor.U8, Shape: []int{p.Stored.Cols},
			Size: int64(p.Stored.Cols)}
		out = append(out, tensor.Source{Info: info, Payload: func(w io.Writer) error {
			all, err := model.StoredBytes(s, p)
			if err != nil {
				return err
			}
			_, err = w.Write(all)
			return err
		}})
	}
	return out
}

// restoreStored is the inverse of storedTensors; weights of other parameters are refreshed.
func restoreStored(m *model.Model, s device.Stream, f *safetensors.File) error {
	for _, p := range m.Params() {
		if p.Shared(device.OfValue) {
			continue // its weight was made when it was spread
		}
		if len(p.Blocks) == 0 {
			s.RefreshWeight(p)
			continue
		}
		name := storedPrefix + p.Name
		st, ok := f.Tensor(name)
		if !ok || st.DType != tensor.U8 || st.Size != int64(p.Stored.Cols) {
			return fault.In(fault.Invalid, f.Path(), "is missing or not %d bytes", p.Stored.Cols).At("tensor %q", name).
				WithHint("the checkpoint is of a student in other types").WithID("E-CKPT-003")
		}
		raw := make([]byte, st.Size)
		if n, err := st.ReadAt(raw, 0); n < len(raw) {
			return fault.In(fault.IO, f.Path(), "cannot be read").At("tensor %q", name).Because(err)
		}
		s.(device.Quantizer).SetStored(p, raw)
	}
	return nil
}

// readState reads a tensor of a checkpoint.
func readState(f *safetensors.File, name string, shape []int) ([]float32, error) {
	st, ok := f.Tensor(name)
	if !ok || !slices.Equal(st.Shape, shape) || st.DType != tensor.F32 {
		return nil, fault.In(fault.Invalid, f.Path(), "is missing or not float32 of shape %v", shape).At("tensor %q", name).
			WithHint("the checkpoint is of another student").WithID("E-CKPT-003")
	}
	return modelfile.ReadFloat32(f.Path(), st)
}

// companions are what a checkpoint holds of each parameter.
var companions = []struct {
	prefix string
	of     device.Companion
}{{"", device.OfValue}, {"optimizer.m.", device.OfM}, {"optimizer.v.", device.OfV}}

// masterSource is a part of a companion as float32; of a student in blocks, the values are the master weights.
func masterSource(m *model.Model, s device.Stream, p model.Part, name string, c device.Companion) tensor.Source {
	if p.Param.Shared(c) {
		return m.CompanionSource(s, p, name, c, tensor.F32)
	}
	return model.DownloadSource(s, name, p.Shape, p.Of(p.Param.Companion(c)), tensor.F32)
}

// restoreTensors is the inverse of trainingTensors. Of companions that ranks share, all values are staged, and spread
// lets every rank take its share.
func restoreTensors(m *model.Model, s device.Stream, f *safetensors.File,
	spread func(param, companion int) error) error {
	read := func(name string, shape []int) ([]float32, error) { return readState(f, name, shape) }
	for i, k := range companions {
		for _, p := range m.Parts() {
			host, err := read(k.prefix+p.Name, p.Shape)
			if err != nil {
				return err
			}
			s.Upload(p.Of(p.Param.Staging(k.of)), host)
		}
		for j, p := range m.Params() {
			if p.Shared(k.of) {
				if err := spread(j, i); err != nil {
					return err
				}
			}
		}
	}
	for name, values := range m.Fixed() {
		host, err := read(name, []int{len(values)})
		if err != nil {
			return err
		}
		copy(values, host)
	}
	return restoreStored(m, s, f)
}
