package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Schema returns the JSON Schema (draft 2020-12) of c's configuration file, made from the option table.
func Schema(c *Command, id string) []byte {
	props := map[string]any{}
	opts := append(slices.Clone(c.table()), (&App{}).allowOption())
	for i := range opts {
		o := &opts[i]
		if o.EnvOnly || o.Name == "print-config" {
			continue
		}
		s := o.Value.schema()
		s["description"] = o.description()
		props[o.key()] = s
		for _, a := range o.Aliases {
			props[strings.ReplaceAll(a, "-", "_")] = s
		}
	}
	for _, key := range sortedKeys(c.Nested) {
		addNested(props, strings.Split(key, "."), leaf(c, c.Nested[key][0].Option))
	}
	root := map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": id,
		"title": "Configuration of apr " + c.Name, "type": "object", "additionalProperties": false, "properties": props,
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		panic("cli: schema: " + err.Error()) // maps of strings, numbers and booleans always encode
	}
	return b.Bytes()
}

func leaf(c *Command, option string) map[string]any {
	for i := range c.Options {
		if c.Options[i].Name == option {
			return c.Options[i].Value.schema()
		}
	}
	panic("cli: nested key for unknown option " + option)
}

// addNested puts s at the end of path; a section that is also a flat key may be either.
func addNested(props map[string]any, path []string, s map[string]any) {
	name := path[0]
	if len(path) == 1 {
		props[name] = s
		return
	}
	section := map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
	switch old, _ := props[name].(map[string]any); {
	case old == nil:
		props[name] = section
	case old["type"] == "object":
		section = old
	case old["x-section"] == true:
		section = old["anyOf"].([]any)[1].(map[string]any)
	default:
		flat := map[string]any{}
		for k, v := range old {
			if k != "description" {
				flat[k] = v
			}
		}
		props[name] = map[string]any{"description": old["description"], "x-section": true, "anyOf": []any{flat, section}}
	}
	addNested(section["properties"].(map[string]any), path[1:], s)
}
