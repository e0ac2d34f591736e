package falsify

import (
	"go/build"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
)

// Of every package of this tree, the files whose tests are listed are those that go/build takes, with the tags of the
// checks and without.
func TestListedLikeGoBuild(t *testing.T) {
	packages := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() == "testdata" || len(d.Name()) > 2 && d.Name()[0] == '.' {
			if d != nil && d.IsDir() && err == nil {
				return fs.SkipDir
			}
			return err
		}
		for _, tags := range [][]string{nil, {"emulate"}, {"gpu"}, {"browser", "emulate"}} {
			ctx := build.Default
			ctx.CgoEnabled, ctx.BuildTags = false, tags
			pkg, err := ctx.ImportDir(path, 0)
			if err != nil {
				continue // no package, or none for these tags
			}
			want := slices.Sorted(slices.Values(slices.Concat(pkg.TestGoFiles, pkg.XTestGoFiles)))
			got, err := testFiles(path, tags)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			var names []string
			for _, f := range got {
				names = append(names, f.name)
			}
			if slices.Sort(names); !slices.Equal(names, want) {
				t.Errorf("%s with %v: %v, go/build takes %v", path, tags, names, want)
			}
			packages++
		}
		return nil
	})
	if err != nil || packages < 200 {
		t.Errorf("%d packages, %v", packages, err)
	}
}
