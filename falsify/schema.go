package falsify

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// Schema returns the JSON Schema (draft 2020-12) of a contract under rule set Ours, for editors. It says what Read
// does: which keys there are, which must be present, and what they hold. What a declared result may look like is not
// in it, since Ours refuses any.
func Schema(id string) []byte {
	root := objectSchema(reflect.TypeFor[Contract]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = id
	root["title"] = "A contract of apr"
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		panic("contract: schema: " + err.Error()) // maps of strings, numbers and booleans always encode
	}
	return b.Bytes()
}

func objectSchema(t reflect.Type) map[string]any {
	properties := map[string]any{}
	required := []any{}
	var either []any // for each required key with an alias
	for _, k := range keysOf(t) {
		if k.result {
			continue
		}
		s := valueSchema(t.Field(k.index).Type, k)
		properties[k.name] = s
		switch {
		case k.alias == "" && k.required:
			required = append(required, k.name)
		case k.alias != "":
			properties[k.alias] = s
			one := []any{map[string]any{"required": []any{k.name}}, map[string]any{"required": []any{k.alias}}}
			if !k.required {
				one = append(one, map[string]any{"not": map[string]any{"anyOf": one[:2:2]}})
			}
			either = append(either, map[string]any{"oneOf": one})
		}
	}
	s := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	if len(either) > 0 {
		s["allOf"] = either
	}
	return s
}

func valueSchema(t reflect.Type, k key) map[string]any {
	switch t.Kind() {
	case reflect.Pointer:
		return valueSchema(t.Elem(), k)
	case reflect.Struct:
		return objectSchema(t)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": valueSchema(t.Elem(), key{})}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": valueSchema(t.Elem(), key{})}
	case reflect.Interface:
		return map[string]any{}
	case reflect.String:
		if k.enum != nil {
			return map[string]any{"enum": k.enum}
		}
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Uint32:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": uint64(1)<<32 - 1}
	case reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	}
	panic("contract: no schema for " + t.String())
}
