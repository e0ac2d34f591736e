package main

import (
	"context"
	"math"
	"path/filepath"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/convert"
	"apr/device"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

// promptIDs are ids that any of the random models has: more than their windows.
var promptIDs = func() (ids []int32) {
	for i := range 24 {
		ids = append(ids, int32(300+(i*37)%200))
	}
	return ids
}()

// throughGGUF writes a random model as a folder, as GGUF in float32, and back as a folder, and returns the largest difference of
// logits from the first, of the largest. Models that the device does not compute are compared by the float64 reference.
func throughGGUF(ctx context.Context, d device.Device, m randmodel.Model, root, dir string) (float64, error) {
	folder := filepath.Join(dir, m.FolderName())
	if err := m.Folder(root, folder); err != nil {
		return 0, err
	}
	if err := write(ctx, folder, folder+".gguf", convert.Options{Scheme: convert.F32, Force: true}); err != nil {
		return 0, err
	}
	if err := write(ctx, folder+".gguf", folder+"-back", convert.Options{Force: true}); err != nil {
		return 0, err
	}
	want, err := logitsOf(d, folder)
	if err != nil {
		return 0, err
	}
	worst := 0.0
	for _, path := range []string{folder + ".gguf", folder + "-back"} {
		got, err := logitsOf(d, path)
		if err != nil {
			return 0, err
		}
		narrow := make([]float32, len(got))
		for i, x := range got {
			narrow[i] = float32(x)
		}
		worst = math.Max(worst, ofMax(narrow, want))
	}
	return worst, nil
}

// write converts a model.
func write(ctx context.Context, in, out string, opt convert.Options) error {
	c, err := convert.Open(in)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = convert.Write(ctx, c, out, opt)
	return err
}

// logitsOf returns the logits of promptIDs.
func logitsOf(d device.Device, path string) ([]float64, error) {
	f, err := modelfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if model.Computed(f.Config) != nil {
		return judged(f)
	}
	m, err := model.LoadFrozen(d, f, device.TeacherWeights)
	if err != nil {
		return nil, err
	}
	s := d.NewStream()
	ids := d.Alloc("ids", device.Batch, tensor.I32, len(promptIDs), 1)
	s.UploadInts(ids, promptIDs)
	x := s.Temp("hidden", device.Activations, d.Info().Activations, len(promptIDs), f.Config.Hidden)
	defer s.Release(x)
	m.Hidden(s, x, model.Tokens{IDs: ids, Rows: 1, SeqLen: len(promptIDs)})
	z := s.Temp("z", device.Logits, tensor.F32, len(promptIDs), f.Config.Vocab)
	defer s.Release(z)
	m.Logits(s, z, x)
	host := make([]float32, len(promptIDs)*f.Config.Vocab)
	err = s.Download(host, z)
	out := make([]float64, len(host))
	for i, v := range host {
		out[i] = float64(v)
	}
	return out, err
}

// judged returns the logits of the float64 reference, rounded to float32.
func judged(f *modelfile.Files) ([]float64, error) {
	values := map[string][]float32{}
	for _, s := range arch.Slots(f.Config) {
		v, err := f.ReadFloat32(s.Name)
		if err != nil {
			return nil, err
		}
		values[s.Name] = v
	}
	ids := make([]int, len(promptIDs))
	for i, id := range promptIDs {
		ids[i] = int(id)
	}
	out := reference(f.Config, values).Forward(ids, 1).Logits.V
	for i, x := range out {
		out[i] = float64(float32(x))
	}
	return out, nil
}
