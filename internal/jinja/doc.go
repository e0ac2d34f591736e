// Package jinja renders chat templates as Jinja2 does in the environment of Hugging Face's transformers: an immutable
// sandbox, trim_blocks and lstrip_blocks on, keep_trailing_newline off, loopcontrols, {% generation %}, tojson without HTML
// escapes, raise_exception and strftime_now.
//
//	t, err := jinja.Parse(text)
//	out, err := t.Render(vars, now)
//
// A template is data from strangers. It sees the values it is given and nothing else: there is no loader, no attribute
// of a Go value, no clock but the time that Render is given. It takes at most maxSteps evaluated nodes, makes or reads at
// most maxWork bytes, nests at most maxDepth deep and writes at most maxOutput bytes.
//
// What is not known here is an error with its line when it is met, never an approximation. Left out are templates of
// several files (extends, include, import, block), autoescape, and the functions lipsum, cycler and joiner.
package jinja
