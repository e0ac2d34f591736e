package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"

	"apr/internal/fault"
)

// Restore gives options the values that an earlier call recorded as JSON, by configuration key, and returns them as
// settings with the origins they had. An option that was not recorded keeps its default. A recorded key that is no
// option, or a value that the option no longer takes, is a fault of kind Invalid.
func Restore(opts []Option, recorded map[string]Setting) (Settings, error) {
	var all Settings
	for i := range opts {
		o := &opts[i]
		set := Setting{Name: o.Name, Value: o.Value.get(), Origin: "default", envOnly: o.EnvOnly}
		if was, ok := recorded[o.key()]; ok {
			if err := set.restore(o, was, ""); err != nil {
				return nil, err
			}
		}
		all = append(all, set)
	}
	for _, key := range sortedKeys(recorded) {
		if !hasKey(opts, key) {
			return nil, unknownRecord(key)
		}
	}
	return all, nil
}

func hasKey(opts []Option, key string) bool {
	return slices.ContainsFunc(opts, func(o Option) bool { return o.key() == key })
}

func unknownRecord(key string) error {
	return fault.New(fault.Invalid, "recorded option %s is none of this program", key).WithID("E-CLI-041")
}

// Earlier is what an earlier call was asked to do.
type Earlier struct {
	Settings map[string]Setting // as it recorded them, by configuration key
	Folder   string             // where its relative paths start from; empty: the working directory
}

// Reset makes e.Settings those of another command's options, as the environment has them, for a command that calls it.
func (e *Env) Reset(opts []Option) (err error) {
	e.Settings, err = merge(opts, nil, e.env)
	return err
}

// TakeOver gives options that this call leaves at their defaults the values of an earlier call, with their origins,
// also those of flags that all commands have. A recorded option that this program lacks is refused, unless it was at
// its default.
func (e *Env) TakeOver(opts []Option, was Earlier) error {
	shared := e.app.shared()
	for _, table := range [][]Option{opts, shared} {
		for i := range table {
			o := &table[i]
			recorded, ok := was.Settings[o.key()]
			if !ok || e.Settings.Given(o.Name) {
				continue
			}
			set := Setting{Name: o.Name, Origin: "default", envOnly: o.EnvOnly}
			if err := set.restore(o, recorded, was.Folder); err != nil {
				return err
			}
			e.Settings.put(set)
		}
	}
	e.AllowConfigKeys = e.app.allowKeys
	for _, key := range sortedKeys(was.Settings) {
		if was.Settings[key].Origin != "default" && !hasKey(opts, key) && !hasKey(shared, key) {
			return unknownRecord(key)
		}
	}
	return nil
}

// Imply gives an option that this call leaves at its default the value that another option implies. Its origin is that option.
func (e *Env) Imply(opts []Option, by, name, text string) error {
	i := slices.IndexFunc(opts, func(o Option) bool { return o.Name == name })
	if e.Settings.Given(name) {
		return nil
	}
	set := Setting{Name: name, Origin: "--" + by}
	def := opts[i].Value.get()
	if err := opts[i].Value.set(text); err != nil {
		return fault.In(fault.Usage, "--"+by, "implies --%s %s: %v", name, text, err)
	}
	set.Value = opts[i].Value.get()
	set.changed = !reflect.DeepEqual(set.Value, def)
	e.Settings.put(set)
	return nil
}

// put replaces the setting of that name, or adds it.
func (s *Settings) put(set Setting) {
	if i := slices.IndexFunc(*s, func(v Setting) bool { return v.Name == set.Name }); i >= 0 {
		(*s)[i] = set
	} else if set.Origin != "default" {
		*s = append(*s, set)
	}
}

// restore sets o to a recorded value, and s to what it then is. Relative paths start from base.
func (s *Setting) restore(o *Option, was Setting, base string) error {
	def := o.Value.get()
	if err := restore(o, was, base); err != nil {
		return fault.New(fault.Invalid, "recorded option %s: %v", o.key(), err).WithID("E-CLI-040")
	}
	s.Value, s.Origin = o.Value.get(), was.Origin
	s.changed = !reflect.DeepEqual(s.Value, def)
	if s.Origin == "default" {
		s.unset = o.Default
	}
	return nil
}

// restore sets o to a recorded value, unless it has it: a default may be no value that could be given.
func restore(o *Option, was Setting, base string) error {
	is, err := json.Marshal(o.Value.get())
	if err != nil {
		return err
	}
	recorded, err := json.Marshal(was.Value)
	if err != nil {
		return err
	}
	if bytes.Equal(is, recorded) {
		return nil
	}
	values := []any{was.Value}
	if list, ok := was.Value.([]any); ok {
		values = list
	}
	l, isList := o.Value.(list)
	if isList {
		l.clear()
	} else if len(values) != 1 {
		return fmt.Errorf("%d values where one is wanted", len(values))
	}
	for _, v := range values {
		text := asText(v)
		text = o.from(base, text)
		if err := o.Value.set(text); err != nil {
			return err
		}
	}
	return nil
}

// asText is a JSON value as it is given on a command line.
func asText(v any) string {
	if f, ok := v.(float64); ok {
		if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}
