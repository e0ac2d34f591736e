package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"apr/internal/fault"
)

// Restore gives options the values that an earlier call recorded as JSON, by configuration key, and returns them as
// settings with the origins they had. An option that was not recorded keeps its default. A recorded key that is no option,
// or a value that the option no longer takes, is a fault of kind Invalid.
func Restore(opts []Option, recorded map[string]Setting) (Settings, error) {
	var all Settings
	for i := range opts {
		o := &opts[i]
		set := Setting{Name: o.Name, Value: o.Value.get(), Origin: "default", envOnly: o.EnvOnly}
		if was, ok := recorded[o.key()]; ok {
			if err := restore(o, was); err != nil {
				return nil, fault.New(fault.Invalid, "recorded option %s: %v", o.key(), err).WithID("E-CLI-040")
			}
			set.Value, set.Origin = o.Value.get(), was.Origin
		}
		all = append(all, set)
	}
	for _, key := range sortedKeys(recorded) {
		if !slices.ContainsFunc(opts, func(o Option) bool { return o.key() == key }) {
			return nil, fault.New(fault.Invalid, "recorded option %s is none of this program", key).WithID("E-CLI-041")
		}
	}
	return all, nil
}

// restore sets o to a recorded value, unless it has it: a default may be no value that could be given.
func restore(o *Option, was Setting) error {
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
		if err := o.Value.set(asText(v)); err != nil {
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
