package distill

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

// writeStudent writes the trained student into the run directory: student/ (Hugging Face) and student.apr. Outputs of
// an earlier part of a resumed run are replaced.
func (r *Run) writeStudent(m *model.Model, out *Outcome) error {
	r.obs.Phase("writing the student")
	tensors := m.Sources(r.stream, tensor.F32)
	folder := r.dir.File("student")
	names, err := modelfile.SaveHF(folder, m.Config, r.in.tokenizer, tensors, tensor.F32, true)
	if err != nil {
		return err
	}
	var files []string
	for _, name := range names {
		files = append(files, filepath.Join("student", name))
	}
	// Content alone, so that equal runs write equal files: which run it was is in the receipt, beside the file's hash.
	provenance := map[string]any{
		"teacher_sha256": r.in.records["teacher"].SHA256, "student_init_sha256": r.in.records["student_init"].SHA256,
		"data_sha256": r.in.records["data"].SHA256, "alpha": r.Loss.Alpha, "temperature": r.Loss.Temperature,
		"steps": out.StepsCompleted, "tokens": out.TokensSeen, "seed": r.Seed,
	}
	if learned := r.in.learned(); learned != "" {
		provenance["text"] = learned
	}
	if err := modelfile.SaveAPR(r.dir.File("student.apr"), m.Config, r.in.tokenizer, tensors, provenance, r.Writer, true); err != nil {
		return err
	}
	files = append(files, "student.apr")
	if err := r.dir.MakePrivate("student", "student.apr"); err != nil {
		return err
	}
	out.Outputs = map[string]string{}
	for _, name := range files {
		if out.Outputs[name], _, err = hashFile(r.dir.File(name)); err != nil {
			return err
		}
	}
	return r.export(m, out)
}

// export writes the student to the further path that --output named, in the format of its extension.
func (r *Run) export(m *model.Model, out *Outcome) error {
	if r.Export == "" {
		return nil
	}
	var err error
	switch filepath.Ext(r.Export) {
	case ".gguf":
		name := strings.TrimSuffix(filepath.Base(r.Export), ".gguf")
		err = modelfile.SaveGGUF(r.Export, m.Config, r.in.tokenizer, m.Sources(r.stream, tensor.F32), modelfile.GGUFOrigin{Name: name, Learned: r.in.learned()}, r.Force)
	case ".safetensors":
		err = copyFile(r.Export, r.dir.File(filepath.Join("student", "model.safetensors")), r.Force)
	default:
		err = copyFile(r.Export, r.dir.File("student.apr"), r.Force)
	}
	if err != nil {
		return err
	}
	out.Exported = r.Export
	return nil
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
