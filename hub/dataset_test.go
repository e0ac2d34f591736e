package hub

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/hub/hubtest"
	"apr/internal/fault"
)

// TestChooseData: which files of a repository of data a reference means.
func TestChooseData(t *testing.T) {
	const whole = "hf://datasets/org/name"
	parquet := []string{"README.md", "data/train-0.parquet", "data/train-1.parquet", "data/test-0.parquet", "sample.jsonl"}
	for _, c := range []struct {
		ref   string
		names []string
		want  string // the names, or an error's text
		kind  fault.Kind
	}{
		{whole, parquet, "data/train-0.parquet data/train-1.parquet", 0},
		{whole + "/data/test-0.parquet", parquet, "data/test-0.parquet", 0},
		{whole + "/data/*.parquet", parquet, "data/test-0.parquet data/train-0.parquet data/train-1.parquet", 0},
		{whole + "/*.jsonl", parquet, "sample.jsonl", 0},
		{whole + "/*", parquet, "data/test-0.parquet data/train-0.parquet data/train-1.parquet sample.jsonl", 0},
		{whole, []string{"alpaca_data.json", "README.md", "dataset_infos.json"}, "alpaca_data.json", 0},
		{whole, []string{"a.jsonl.gz", "b.csv"}, "a.jsonl.gz", 0},
		{whole, []string{"trained.txt", "b.txt"}, "b.txt trained.txt", 0},
		{whole, []string{"train/a.txt", "validation/b.txt"}, "train/a.txt", 0},
		{whole, []string{"en/train-0.parquet", "de/train-0.parquet"}, "has data in 2 folders, each perhaps a data set of its own", fault.Usage},
		{whole + "/en", []string{"en/train-0.parquet", "de/train-0.parquet", "en/test-0.parquet"}, "en/train-0.parquet", 0},
		{whole + "/fr", []string{"en/train-0.parquet"}, `has no data file "fr"`, fault.HTTP404},
		{whole, []string{"README.md", "model.safetensors"}, "has no file of data", fault.NotFound},
	} {
		ref, err := ParseRef(c.ref)
		if err != nil {
			t.Fatal(err)
		}
		got, err := choose(ref, c.names, Options{})
		if fault.KindOf(err) != c.kind || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && strings.Join(got, " ") != c.want {
			t.Errorf("%s of %v: %v, %v; want %s", c.ref, c.names, got, err, c.want)
		}
	}
}

// TestDatasets: a data set comes into the cache as models do; what the cache has is whole only with all files that are meant.
func TestDatasets(t *testing.T) {
	g := newRig(t)
	g.Dataset = true
	maps.Copy(g.Files, map[string][]byte{"data/train-0.parquet": content(5000, 3), "data/train-1.parquet": content(6000, 4), "data/test-0.parquet": content(10, 5)})
	find := func(text string, offline bool) ([]string, error) {
		ref, err := ParseRef(text)
		if err != nil {
			t.Fatal(err)
		}
		s, err := g.c.Find(t.Context(), ref, Options{}, offline)
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(s.Path, filepath.Join(g.cache, "datasets--org--name", "snapshots", hubtest.Commit)) {
			t.Errorf("%s is in %s", text, s.Path)
		}
		var names []string
		for _, f := range s.Files {
			names = append(names, f.Name)
		}
		return names, nil
	}
	one, err := find("hf://datasets/org/name/data/train-0.parquet", false)
	if err != nil || !slices.Equal(one, []string{"data/train-0.parquet"}) {
		t.Fatalf("%v, %v", one, err)
	}
	if _, err := find("hf://datasets/org/name", true); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a part passes for the whole: %v", err)
	}
	all := []string{"data/train-0.parquet", "data/train-1.parquet"}
	if got, err := find("hf://datasets/org/name", false); err != nil || !slices.Equal(got, all) {
		t.Errorf("%v, %v", got, err)
	}
	if g.Sent() != 11000 {
		t.Errorf("%d bytes were sent, want each file once", g.Sent())
	}
	g.Reset()
	for _, offline := range []bool{true, false} {
		if got, err := find("hf://datasets/org/name", offline); err != nil || !slices.Equal(got, all) {
			t.Errorf("from the cache: %v, %v", got, err)
		}
	}
	if calls := g.Calls(""); len(calls) > 0 {
		t.Errorf("asked again for %+v", calls)
	}
	if _, err := find("hf://org/name", false); fault.KindOf(err) != fault.HTTP404 {
		t.Errorf("a data set passes for a model: %v", err)
	}
}
