package cli

import (
	"errors"
	"reflect"

	"apr/internal/fault"
)

// errorObject is the "error" member of the envelope.
type errorObject struct {
	Kind    string  `json:"kind"`
	Message string  `json:"message"`
	Path    *string `json:"path"`
	Hint    *string `json:"hint"`
	Place   string  `json:"place,omitempty"`
	ID      string  `json:"id,omitempty"`
}

// envelope renders the one JSON object of a call: the schema, the result's members, then status, exit_code and, on
// failure, error. A result that has one of the envelope's own keys loses it to the envelope.
func envelope(command string, result any, err error) ([]byte, error) {
	out := object{{"schema", "apr." + command + "/1"}}
	if members, ok := finite(reflect.ValueOf(result)).(object); ok {
		for _, f := range members {
			switch f.name {
			case "schema", "status", "exit_code", "error":
			default:
				out = append(out, f)
			}
		}
	}
	status := "ok"
	if err != nil {
		status = "failed"
	}
	out = append(out, field{"status", status}, field{"exit_code", fault.ExitCode(err)})
	if err != nil {
		out = append(out, field{"error", describeError(err)})
	}
	return encode(out)
}

// describeError splits err into the members of "error".
func describeError(err error) errorObject {
	e := errorObject{Kind: fault.KindOf(err).String(), Message: AsCalled(err.Error())}
	var f *fault.Error
	if errors.As(err, &f) {
		e.Place, e.ID = f.Place, f.ID
		if f.Path != "" {
			e.Path = &f.Path
		}
		if f.Hint != "" {
			hint := AsCalled(f.Hint)
			e.Hint = &hint
		}
	}
	return e
}
