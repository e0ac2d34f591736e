package modelfile

import (
	"errors"
	"path/filepath"

	"apr/arch"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
	"apr/quant"
	"apr/tensor"
)

// dequantise makes the matrices of an FP8 checkpoint readable, as quantization_config of the config.json in dir says. A method
// that is not supported is an error of ReadConfig, so that the file can be inspected all the same.
func (c *Container) dequantise(f *safetensors.File, dir string) error {
	scheme, err := readFP8(filepath.Join(dir, "config.json"))
	switch {
	case err != nil:
		c.ReadConfig = func() (arch.Config, error) { return arch.Config{}, err }
		return nil
	case scheme != nil:
		return f.Dequantise(*scheme)
	}
	for _, t := range f.Tensors() {
		if t.DType == tensor.F8_E4M3 {
			read := c.ReadConfig
			c.ReadConfig = func() (arch.Config, error) {
				config, err := read()
				if err != nil {
					return config, err
				}
				return config, fault.In(fault.Load, c.Path, "is of type %s, and config.json has no quantization_config", t.DType).At("tensor %q", t.Name).
					WithHint("quantization_config of quant_method fp8 says which scales are whose").WithID("E-MODEL-020")
			}
			break
		}
	}
	return nil
}

// readFP8 reads quantization_config of a config.json; nil: there is none, or what ReadConfig will say of the file comes first.
func readFP8(path string) (*quant.FP8, error) {
	text, err := readfile.String(path, maxConfigBytes)
	if err != nil {
		return nil, nil
	}
	root, err := strictjson.Parse(text, strictjson.Options{})
	if err != nil || root.Kind() != strictjson.Object {
		return nil, nil
	}
	v, ok := root.Get("quantization_config")
	if text, nested := root.Get("text_config"); !ok && nested && text.Kind() == strictjson.Object {
		v, ok = text.Get("quantization_config")
	}
	if !ok || v.Kind() == strictjson.Null {
		return nil, nil
	}
	if method, ok := v.Get("quant_method"); ok {
		if name, err := method.Str(); err == nil && name == "mxfp4" { // kept in blocks, not in scaled matrices
			return nil, nil
		}
	}
	scheme, err := quant.ParseFP8(v)
	if err == nil {
		return &scheme, nil
	}
	var e *strictjson.Error
	if errors.As(err, &e) {
		line, column := strictjson.Position(text, e.Offset)
		return nil, fault.In(fault.Load, path, "quantization_config: %s", e.Msg).At("line %d, column %d", line, column).
			WithHint("a checkpoint of quant_method fp8 (of gpt_oss, mxfp4), or one that is not quantised").WithID("E-MODEL-020")
	}
	return nil, err
}
