package hub

import (
	"net/url"
	"path"
	"regexp"
	"strings"

	"apr/internal/fault"
)

// Scheme begins every unambiguous reference.
const Scheme = "hf://"

// DefaultRevision is the branch of a reference that names none.
const DefaultRevision = "main"

// Ref names a repository at a revision, and perhaps a file of it.
type Ref struct {
	Repo     string // org/name
	Revision string // branch, tag or commit
	File     string // path in the repository; empty: the model or data set as a whole. Of a data set also a folder, or a pattern as of path.Match
	Dataset  bool   // a repository of data, not of a model
}

// datasets begins the path of a repository of data, on the hub and in a reference.
const datasets = "datasets/"

// IsDataset reports whether a text is a reference to a data set, hf://datasets/org/name.
func IsDataset(s string) bool { return strings.HasPrefix(s, Scheme+datasets) }

// pullRef is a revision with a slash that every hub has: of a pull request or a conversion.
var pullRef = regexp.MustCompile(`^refs/(pr|convert)/[^/]+`)

// ParseRef reads hf://org/name[@rev][/file] or org/name[@rev][/file], and hf://datasets/org/name[@rev][/file]. A slash of a revision is written %2F, except in
// refs/pr/N and refs/convert/NAME. A wrong form is a fault of kind Usage, an unsafe name of kind UnsafePath.
func ParseRef(s string) (Ref, error) {
	text := strings.TrimPrefix(s, Scheme)
	r := Ref{Revision: DefaultRevision, Dataset: IsDataset(s)}
	if r.Dataset {
		text = strings.TrimPrefix(text, datasets)
	}
	org, rest, ok := strings.Cut(text, "/")
	if !ok || org == "" || rest == "" || strings.Contains(org, "@") {
		return r, fault.New(fault.Usage, "%q is not hf://org/name[@revision][/file] or hf://datasets/org/name[@revision][/file]", clip(s)).WithID("E-HUB-009")
	}
	end := strings.IndexAny(rest, "@/")
	if end < 0 {
		end = len(rest)
	}
	name, rest := rest[:end], rest[end:]
	r.Repo = org + "/" + name
	if revision, ok := strings.CutPrefix(rest, "@"); ok {
		r.Revision, rest = revision, ""
		if long := pullRef.FindString(revision); long != "" {
			r.Revision, rest = long, revision[len(long):]
		} else if i := strings.IndexByte(revision, '/'); i >= 0 {
			r.Revision, rest = revision[:i], revision[i:]
		}
		plain, err := url.PathUnescape(r.Revision)
		if err != nil {
			return r, fault.New(fault.Usage, "revision %q is badly escaped", clip(r.Revision)).WithID("E-HUB-009")
		}
		r.Revision = plain
	}
	if file, ok := strings.CutPrefix(rest, "/"); ok {
		if file == "" {
			return r, fault.New(fault.Usage, "%q ends with a slash", clip(s)).WithHint("name a file, or the repository alone").WithID("E-HUB-009")
		}
		r.File = file
	}
	return r, r.check()
}

// check refuses unsafe parts.
func (r Ref) check() error {
	if err := checkRepo(r.Repo); err != nil {
		return err
	}
	if err := CheckName(r.Revision); err != nil {
		return err
	}
	if r.File == "" {
		return nil
	}
	if !r.pattern() {
		return CheckName(r.File)
	}
	if _, err := path.Match(r.File, ""); err != nil {
		return fault.New(fault.Usage, "%q is not a pattern of files", clip(r.File)).WithID("E-HUB-010")
	}
	return CheckName(strings.NewReplacer("*", "x", "?", "x").Replace(r.File))
}

// pattern reports whether File stands for the files of a data set that it matches.
func (r Ref) pattern() bool { return r.Dataset && strings.ContainsAny(r.File, "*?[") }

// whole is the reference without its file.
func (r Ref) whole() Ref { return Ref{Repo: r.Repo, Revision: r.Revision, Dataset: r.Dataset} }

// of is the reference to a file of the same repository.
func (r Ref) of(file string) Ref {
	r.File = file
	return r
}

// place is the path of the repository on the hub.
func (r Ref) place() string {
	if r.Dataset {
		return datasets + r.Repo
	}
	return r.Repo
}

// String is the reference as ParseRef reads it; the default revision is left out.
func (r Ref) String() string {
	s := Scheme + r.place()
	if r.Revision != DefaultRevision && r.Revision != "" {
		revision := r.Revision
		if pullRef.FindString(revision) != revision {
			revision = url.PathEscape(revision)
		}
		s += "@" + revision
	}
	if r.File != "" {
		s += "/" + r.File
	}
	return s
}

// folder is the repository's folder in the cache.
func (r Ref) folder() string {
	kind := "models--"
	if r.Dataset {
		kind = "datasets--"
	}
	return kind + strings.ReplaceAll(r.Repo, "/", "--")
}
