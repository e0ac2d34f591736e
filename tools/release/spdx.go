package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// program is a built file, with what it says of itself.
type program struct {
	file, os, arch string
	sum            string // SHA-256
	commit         string
	compiler       string // as in go1.26.0
	modules        []module
}

type module struct{ path, version, sum string }

// inspect reads the modules and the commit that the compiler wrote into a program.
func (p *program) inspect(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	p.sum = fmt.Sprintf("%x", sha256.Sum256(text))
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	p.compiler = info.GoVersion
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		p.modules = append(p.modules, module{d.Path, d.Version, d.Sum})
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			p.commit = s.Value
		case s.Key == "vcs.modified" && s.Value != "false":
			return fmt.Errorf("%s was built from files that differ from the commit", p.file)
		}
	}
	if p.commit == "" {
		return fmt.Errorf("%s does not name its commit", p.file)
	}
	return nil
}

// The parts of a document of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3) that are used.
type document struct {
	SPDXVersion   string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []component    `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type component struct {
	ID        string     `json:"SPDXID"`
	Name      string     `json:"name"`
	Version   string     `json:"versionInfo,omitempty"`
	File      string     `json:"packageFileName,omitempty"`
	Purpose   string     `json:"primaryPackagePurpose"`
	Download  string     `json:"downloadLocation"`
	Analyzed  bool       `json:"filesAnalyzed"`
	Concluded string     `json:"licenseConcluded"`
	Declared  string     `json:"licenseDeclared"`
	Copyright string     `json:"copyrightText"`
	Checksums []checksum `json:"checksums,omitempty"`
	Refs      []external `json:"externalRefs,omitempty"`
	Comment   string     `json:"comment,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const none = "NOASSERTION"

// spdx lists what is in the programs: for each the modules that its build information names, the Go distribution, and what
// is embedded, under the licences of THIRD_PARTY_NOTICES.md. A module without a row there is an error.
func spdx(source, version string, programs []program) ([]byte, error) {
	licences, err := readNotices(filepath.Join(source, "THIRD_PARTY_NOTICES.md"))
	if err != nil {
		return nil, err
	}
	created, err := output(source, nil, "git", "show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return nil, err
	}
	at, err := time.Parse(time.RFC3339, created)
	if err != nil {
		return nil, err
	}
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "apr-" + version,
		Namespace: "https://spdx.org/spdxdocs/apr-" + version + "-" + programs[0].commit,
		Creation:  creation{at.UTC().Format(time.RFC3339), []string{"Tool: apr-tools-release"}},
	}
	known := map[string]bool{}
	add := func(owner string, c component, kind string) {
		if !known[c.ID] {
			known[c.ID] = true
			d.Packages = append(d.Packages, c)
		}
		d.Relationships = append(d.Relationships, relationship{owner, kind, c.ID})
	}
	for _, p := range programs {
		self := component{
			ID: id("Program", p.os, p.arch), Name: "apr", Version: version, File: p.file, Purpose: "APPLICATION", Download: none,
			Concluded: "Apache-2.0", Declared: "Apache-2.0", Copyright: none, Checksums: []checksum{{"SHA256", p.sum}},
			Comment: fmt.Sprintf("for %s/%s, built from commit %s by %s", p.os, p.arch, p.commit, p.compiler),
		}
		add(d.ID, self, "DESCRIBES")
		for _, c := range licences {
			if c.embedded() {
				add(self.ID, c.component(strings.TrimPrefix(p.compiler, "go")), "CONTAINS")
			}
		}
		for _, m := range p.modules {
			i := slices.IndexFunc(licences, func(n notice) bool { return n.name == m.path && n.version == m.version })
			if i < 0 {
				return nil, fmt.Errorf("%s %s is in %s and has no row in THIRD_PARTY_NOTICES.md: make notices", m.path, m.version, p.file)
			}
			c := licences[i].component("")
			c.Comment = "go.sum: " + m.sum
			add(self.ID, c, "STATIC_LINK")
		}
	}
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

// notice is a row of THIRD_PARTY_NOTICES.md.
type notice struct{ name, version, licence string }

var noticeRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]*) \| ([^|]+) \| \[\d+\][^|]*\|$`)

func readNotices(path string) (list []notice, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, m := range noticeRow.FindAllStringSubmatch(string(text), -1) {
		list = append(list, notice{m[1], strings.TrimSpace(m[2]), strings.ReplaceAll(m[3], " and ", " AND ")})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no table", path)
	}
	return list, nil
}

const goName = "Go standard library and runtime"

// embedded reports whether n is no module: it is in every program.
func (n notice) embedded() bool { return n.name == goName || strings.Contains(n.name, " (") }

// component describes a row; compiler is the version of Go.
func (n notice) component(compiler string) component {
	c := component{
		Version: n.version, Purpose: "LIBRARY", Download: none, Concluded: n.licence, Declared: n.licence, Copyright: none,
	}
	locator := ""
	switch short, _, embedded := strings.Cut(n.name, " ("); {
	case n.name == goName:
		c.Name, c.Version, locator = "go", compiler, "pkg:golang/stdlib@"+compiler
		c.Download = "https://go.dev/dl/go" + compiler + ".src.tar.gz"
	case embedded:
		c.Name, locator = short, "pkg:npm/"+strings.ToLower(short)+"@"+n.version
	default:
		c.Name, locator = n.name, "pkg:golang/"+n.name+"@"+strings.ReplaceAll(n.version, "+", "%2B")
		c.Download = "https://proxy.golang.org/" + escaped(n.name) + "/@v/" + escaped(n.version) + ".zip"
	}
	c.ID = id("Package", c.Name, c.Version)
	c.Refs = []external{{"PACKAGE-MANAGER", "purl", locator}}
	return c
}

// escaped is a path or version as module proxies want it: a capital letter is '!' and the small one.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

var notInID = regexp.MustCompile(`[^0-9A-Za-z.-]+`)

// id is an identifier of the document: letters, digits, dots and hyphens.
func id(parts ...string) string {
	return "SPDXRef-" + notInID.ReplaceAllString(strings.Join(parts, "-"), "-")
}
