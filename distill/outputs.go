package distill

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"apr/adapter"
	"apr/arch"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

// written is a student about to be written: its description, its tensors in float32, and as it was trained, in blocks
// or float32.
type written struct {
	config          arch.Config
	tensors, stored []tensor.Source
}

// writeStudent writes the trained student into the run directory: student/ (Hugging Face) and student.apr, and of a
// student with adapters these, merged if that is asked for. Outputs of an earlier part of a resumed run are replaced.
func (r *Run) writeStudent(m *model.Model, out *Outcome) error {
	r.obs.Phase("writing the student")
	var files []string
	var w written
	if r.LoRA == nil {
		w = written{m.Config, m.Sources(r.stream, tensor.F32), r.stored(m)} // of a student in blocks, what they decode to, and these
	} else {
		a, err := r.in.present(m, r.stream)
		if err != nil {
			return err
		}
		if files, err = r.writeAdapter(a); err != nil {
			return err
		}
		if !r.LoRA.Merge {
			return r.account(files, out, func() error { return r.exportAdapter(a, out) })
		}
		f, err := r.in.openMerged(r.Config, a)
		if err != nil {
			return err
		}
		defer f.Close()
		merged := mergedSources(f)
		w = written{f.Config, merged, merged}
	}
	more, err := r.writeModels(w, out)
	if err != nil {
		return err
	}
	return r.account(append(files, more...), out, func() error { return r.export(w, out) })
}

// writeModels writes student/ and student.apr, and returns their files.
func (r *Run) writeModels(w written, out *Outcome) (files []string, err error) {
	learned, writers := r.in.learned(), r.in.writersOfStudent()
	folder := modelfile.HFOptions{DType: tensor.F32, Force: true, Metadata: modelfile.LearnedMetadata(learned, writers)}
	path, err := r.dir.Place("student")
	if err != nil {
		return nil, err
	}
	names, err := modelfile.SaveHFFolder(path, w.config, r.in.tokenizer, w.tensors, folder)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		files = append(files, filepath.Join("student", name))
	}
	// Content alone, so that equal runs write equal files: which run it was is in the receipt, beside the file's hash.
	provenance := map[string]any{
		"teacher_sha256": r.in.records["teacher"].SHA256, "student_init_sha256": r.in.records["student_init"].SHA256,
		"data_sha256": r.in.records["data"].SHA256, "alpha": r.Loss.Alpha, "temperature": r.Loss.Temperature,
		"steps": out.StepsCompleted, "tokens": out.TokensSeen, "seed": r.Seed,
	}
	if learned != "" {
		provenance["text"] = learned
	}
	if len(writers) > 0 {
		provenance["writers"] = writers
	}
	if r.Quantize != nil {
		provenance["quantize_aware"] = r.Quantize.Scheme
	}
	if path, err = r.dir.Place("student.apr"); err != nil {
		return nil, err
	}
	if err := modelfile.SaveAPR(path, w.config, r.in.tokenizer, w.stored, provenance, r.Writer, true); err != nil {
		return nil, err
	}
	return append(files, "student.apr"), r.dir.MakePrivate("student", "student.apr")
}

// account hashes the files that were written, and exports.
func (r *Run) account(files []string, out *Outcome, export func() error) (err error) {
	out.Outputs = map[string]string{}
	for _, name := range files {
		if out.Outputs[name], _, err = hashFile(r.dir.File(name)); err != nil {
			return err
		}
	}
	return export()
}

// exportAdapter writes the adapter to the further path that --output named: a GGUF file.
func (r *Run) exportAdapter(a *adapter.Adapter, out *Outcome) error {
	if r.Export == "" {
		return nil
	}
	if err := a.SaveGGUF(r.Export, r.in.studentConfig, r.replaces()); err != nil {
		return err
	}
	return r.exported(out)
}

// export writes the student to the further path that --output named, in the format of its extension.
func (r *Run) export(w written, out *Outcome) error {
	if r.Export == "" {
		return nil
	}
	var err error
	switch filepath.Ext(r.Export) {
	case ".gguf":
		name := strings.TrimSuffix(filepath.Base(r.Export), ".gguf")
		err = modelfile.SaveGGUF(r.Export, w.config, r.in.tokenizer, w.stored, modelfile.GGUFOrigin{Name: name,
			Learned: r.in.learned(), Writers: r.in.writersOfStudent()}, r.replaces())
	case ".safetensors":
		err = copyFile(r.Export, r.dir.File(filepath.Join("student", "model.safetensors")), r.replaces())
	default:
		err = copyFile(r.Export, r.dir.File("student.apr"), r.replaces())
	}
	if err != nil {
		return err
	}
	return r.exported(out)
}

// exported records the file, which the rest of the run may replace.
func (r *Run) exported(out *Outcome) error {
	sum, _, err := hashFile(r.Export)
	if err != nil {
		return err
	}
	out.Exported = r.Export
	return r.dir.Event("record", exportedEvent, map[string]string{"path": r.Export, "sha256": sum}, "")
}

// stored returns the student's tensors as it was trained: blocks, or float32.
func (r *Run) stored(m *model.Model) []tensor.Source {
	if m.Quantized() {
		return m.StoredSources(r.stream)
	}
	return m.Sources(r.stream, tensor.F32)
}

// copyFile copies a written output, atomically.
func copyFile(dst, src string, force bool) error {
	in, err := os.Open(src)
	if err != nil {
		return fault.In(fault.IO, src, "cannot be read").Because(err)
	}
	defer in.Close()
	f, err := atomicfile.Create(dst, force)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, in); err != nil {
		return err
	}
	return f.Commit()
}
