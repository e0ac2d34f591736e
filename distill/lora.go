package distill

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"

	"apr/adapter"
	"apr/arch"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/tensor"
)

// LoRA asks for a student that trains by adapters beside frozen weights.
type LoRA struct {
	Rank           int
	Alpha, Dropout float64
	Targets        []string // see adapter.Targets
	From           string   // adapter to begin with, whose ranks, scales and matrices count; empty: a new one
	Merge          bool     // write the merged student beside the adapter
}

// adapterFolder is where a run writes its adapter.
const adapterFolder = "adapter"

// validate refuses what adapters exclude.
func (l *LoRA) validate(c Config) error {
	switch ext := filepath.Ext(c.Export); {
	case l == nil:
		return nil
	case c.Student == "":
		return fault.New(fault.Usage, "--lora trains adapters of a model that is there: --student-config has none").WithHint("--student MODEL")
	case c.RouterBalance != 0:
		return fault.New(fault.Usage, "--router-balance is for routers that train: --lora freezes them")
	case !l.Merge && ext != "" && ext != ".gguf":
		return fault.New(fault.Usage, "--output %s is a model: with --lora-merge off there is an adapter alone", c.Export).
			WithHint("a .gguf file can hold the adapter, as llama.cpp loads it")
	}
	return nil
}

// adapt makes a frozen model train by adapters.
func adapt(m *model.Model, a *adapter.Adapter, seed uint64) {
	var all []model.Adapter
	for _, mod := range a.Modules {
		all = append(all, model.Adapter{Slot: mod.Slot.Name, Rank: mod.Rank, Scale: mod.Scale})
	}
	m.Adapt(all, a.Dropout, seed)
}

// baseForm is how the frozen weights of a student are kept: quantised blocks as they are in the file. A CPU leaves them
// so where they are large.
func baseForm(info device.Info) device.Form { return device.Form{Blocks: info.Kind != "cpu"} }

// newAdapter describes what trains: new adapters, or those of LoRA.From with their values.
func (in *inputs) newAdapter(l *LoRA) (a *adapter.Adapter, err error) {
	if l.From == "" {
		return adapter.New(in.studentConfig, l.Targets, l.Rank, l.Alpha, l.Dropout)
	}
	if a, err = adapter.Open(l.From, in.student); err == nil {
		err = a.CheckApart(l.From, in.student)
		a.Dropout = l.Dropout
		in.records["adapter"] = runlog.Input{Path: l.From, SHA256: a.SHA256(), Of: "slot, rank, scale and values of each module, in order; bytes are those of the values", Bytes: 4 * a.Parameters()}
	}
	return a, err
}

// begin gives adapters the values that they have before training.
func (in *inputs) begin(m *model.Model, s device.Stream, seed uint64) {
	if m.Init(s, seed); in.adapter != nil && in.adapter.Modules[0].A != nil {
		m.SetAdapters(s, in.adapter.Values())
	}
}

// newStudent makes the student of a run, on a device: one that trains whole, its weights zero, or with adapters beside
// those of its file. base is then a view of it without them.
func (in *inputs) newStudent(c Config, dev device.Device) (student, base *model.Model, err error) {
	if in.adapter == nil {
		return in.trainable(dev), nil, nil
	}
	return LoadAdapted(dev, in.student, in.adapter, c.Seed)
}

// LoadAdapted puts the frozen weights of a student on a device, and adapters beside them, without values: call Init
// next. base is a view of it without them.
func LoadAdapted(dev device.Device, w model.Weights, a *adapter.Adapter, seed uint64) (student, base *model.Model, err error) {
	if student, err = model.LoadFrozenAs(dev, w, device.StudentWeights, baseForm(dev.Info())); err != nil {
		return nil, nil, err
	}
	base = student.Frozen()
	adapt(student, a, seed)
	return student, base, nil
}

// Shares reports whether the teacher is the frozen part of the student, which is then held once: it is the same file,
// and either teaches nothing or is kept in the same form.
func (d DryRun) Shares(info device.Info) bool {
	return d.Adapter != nil && d.SameFile && !d.elsewhere && len(d.More) == 0 &&
		(d.Loss.Alpha == 0 || d.Form == baseForm(info))
}

// shares is that of the run's step.
func (in *inputs) shares(c Config, dev device.Device) bool {
	d := in.dryRun(c, nil)
	d.Form = in.choice.Chosen.form
	return d.Shares(dev.Info())
}

// models loads the teachers and the student.
func (in *inputs) models(c Config, dev device.Device) (teachers []*model.Model, student *model.Model, err error) {
	shared := in.shares(c, dev)
	if !shared {
		if teachers, err = in.load(dev); err != nil {
			return nil, nil, err
		}
	}
	student, base, err := in.newStudent(c, dev)
	if shared {
		teachers = []*model.Model{base}
	}
	return teachers, student, err
}

// trainedValues returns how many values a run trains.
func (in *inputs) trainedValues() int64 {
	if in.adapter != nil {
		return in.adapter.Parameters()
	}
	return in.studentConfig.Parameters()
}

// recordAdapter writes down what trains of a student with adapters.
func (r *Run) recordAdapter() error {
	a := r.in.adapter
	if a == nil {
		return nil
	}
	n, all := a.Parameters(), r.in.studentConfig.Parameters()
	reason := fmt.Sprintf("%d parameters train in %d adapters of rank %d, %.2g %% of the student; its own %d are frozen", n, len(a.Modules), a.Modules[0].Rank, 100*float64(n)/float64(all), all)
	r.obs.Detail("%s", reason)
	return r.dir.Event("decision", "adapters", map[string]any{"parameters": n, "rank": a.Modules[0].Rank, "scale": a.Modules[0].Scale, "dropout": r.LoRA.Dropout,
		"matrices": len(a.Modules), "from": r.LoRA.From, "merge": r.LoRA.Merge}, reason)
}

// present returns the adapter with the values that the student has now.
func (in *inputs) present(m *model.Model, s device.Stream) (*adapter.Adapter, error) {
	values, err := m.Stored(s)
	if err != nil {
		return nil, err
	}
	a := in.adapter.With(values)
	return a, a.Record(in.student)
}

// openMerged opens the student's file again, with an adapter merged into it.
func (in *inputs) openMerged(c Config, a *adapter.Adapter) (*modelfile.Files, error) {
	f, err := modelfile.Open(c.Student, c.AllowKeys...)
	if err != nil {
		return nil, err
	}
	if err := a.Merge(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// mergedSources returns all tensors of a merged model in float32.
func mergedSources(f *modelfile.Files) (all []tensor.Source) {
	for _, s := range arch.Slots(f.Config) {
		info := tensor.Info{Name: s.Name, DType: tensor.F32, Shape: s.Shape, Size: 4 * s.Elements()}
		all = append(all, tensor.Source{Info: info, Payload: func(w io.Writer) error {
			values, err := f.ReadFloat32(s.Name)
			if err != nil {
				return err
			}
			raw := make([]byte, info.Size)
			tensor.Narrow(raw, values, tensor.F32)
			_, err = w.Write(raw)
			return err
		}})
	}
	return all
}

// writeAdapter writes the adapter, and returns the files of the run that it is.
func (r *Run) writeAdapter(a *adapter.Adapter) (files []string, err error) {
	path, err := r.dir.Place(adapterFolder)
	if err != nil {
		return nil, err
	}
	names, err := a.SavePEFT(path, true)
	if err != nil {
		return nil, err
	}
	if err := r.dir.MakePrivate(adapterFolder); err != nil {
		return nil, err
	}
	for _, name := range names {
		files = append(files, filepath.Join(adapterFolder, name))
	}
	if r.in.mergedConfig().Tied != r.in.studentConfig.Tied {
		r.obs.Message("the output matrix has an adapter: the merged student's head is no longer its embedding")
	}
	return files, nil
}

// mergedConfig is the description of the student as it is merged: its head is its own if it has an adapter.
func (in *inputs) mergedConfig() arch.Config {
	if in.adapter == nil {
		return in.studentConfig
	}
	for _, m := range in.adapter.Modules {
		if m.Slot.Role == arch.Head {
			return adapter.Untied(in.studentConfig)
		}
	}
	return in.studentConfig
}

// openFinal opens the student that a run has written: student.apr, or where adapters were not merged its file with
// these.
func (in *inputs) openFinal(c Config) (*modelfile.Files, error) {
	if c.LoRA == nil || c.LoRA.Merge {
		return modelfile.Open(filepath.Join(c.Output, "student.apr"))
	}
	a, err := adapter.Open(filepath.Join(c.Output, adapterFolder), in.student)
	if err != nil {
		return nil, err
	}
	return in.openMerged(c, a)
}

// canaryNoise is the broken variant of a student with adapters.
const canaryNoise = "noise"

// noiseCanary scores the student with adapters that were never trained, in the memory of student: their product has
// some five times the size of a matrix of independent values, so that the model knows nothing.
func (r *Run) noiseCanary(student *model.Model, score func(name, what string) (Canary, error)) (Canary, error) {
	values := map[string][]float32{}
	draw := func(name string, n int, size float64) {
		h := fnv.New64a()
		h.Write([]byte(name))
		rng := rand.New(rand.NewPCG(r.Seed, h.Sum64()))
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(size * rng.NormFloat64())
		}
		values[name] = v
	}
	for _, m := range r.in.adapter.Modules {
		nameA, nameB := m.Names()
		out, in, rank := m.Slot.Shape[0], m.Slot.Shape[1], float64(m.Rank)
		draw(nameA, m.Rank*in, 1/math.Sqrt(float64(in)))
		draw(nameB, out*m.Rank, 5/(m.Scale*math.Sqrt(rank)))
	}
	student.SetAdapters(r.stream, values)
	return score(canaryNoise, "every A and B of its adapters is noise")
}
