package hub

import (
	"io"
	"path"
	"slices"
	"strings"

	"apr/internal/fault"
)

// dataKinds are the endings of files of records, best first: of several kinds in a repository the first one is taken. Each may be followed
// by the ending of a compression.
var dataKinds = [][]string{{".parquet"}, {".jsonl", ".ndjson", ".json"}, {".csv", ".tsv"}, {".txt", ".md"}}

// aboutData are files beside the data that end as data does.
var aboutData = []string{"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "README.md"}

// dataKind returns the index into dataKinds of a file, -1 for none.
func dataKind(name string) int {
	for _, packed := range []string{".gz", ".zst", ".xz"} {
		name = strings.TrimSuffix(name, packed)
	}
	if slices.Contains(aboutData, path.Base(name)) || strings.HasPrefix(path.Base(name), ".") {
		return -1
	}
	return slices.IndexFunc(dataKinds, func(endings []string) bool { return slices.Contains(endings, path.Ext(name)) })
}

// chooseData returns the files of a data set that a reference means, sorted: the file that it names, those that its pattern matches, or, of
// its folder or of the whole, those of the best kind. Of the whole, where some files are called after the split train, only these are
// taken. Files in several folders are several data sets, of which the reference has to name one.
func chooseData(ref Ref, names []string) ([]string, error) {
	if slices.Contains(names, ref.File) {
		return []string{ref.File}, nil
	}
	repo := ref.whole()
	var chosen []string
	best := len(dataKinds)
	for _, name := range names {
		kind := dataKind(name)
		if kind < 0 || kind > best || !ref.means(name) {
			continue
		}
		if kind < best && !ref.pattern() {
			best, chosen = kind, nil
		}
		chosen = append(chosen, name)
	}
	slices.Sort(chosen)
	if len(chosen) == 0 && ref.File != "" {
		return nil, fault.In(fault.HTTP404, repo.String(), "has no data file %q", ref.File).
			WithHint("its files of data: %s", sample(names)).WithID("E-HUB-012")
	}
	if len(chosen) == 0 {
		return nil, fault.In(fault.NotFound, repo.String(), "has no file of data: .parquet, .jsonl, .json, .csv, .tsv or .txt").WithID("E-HUB-013")
	}
	if ref.pattern() {
		return chosen, nil
	}
	if train := slices.DeleteFunc(slices.Clone(chosen), func(name string) bool { return !ofTrain(name) }); len(train) > 0 {
		chosen = train
	}
	var folders []string
	for _, name := range chosen {
		if dir := path.Dir(name); !slices.Contains(folders, dir) {
			folders = append(folders, dir)
		}
	}
	if len(folders) > 1 {
		slices.Sort(folders)
		example := folders[len(folders)-1]
		return nil, fault.In(fault.Usage, repo.String(), "has data in %d folders, each perhaps a data set of its own", len(folders)).
			WithHint("name one, as in %s: %s", repo.of(example), sample(folders)).WithID("E-HUB-036")
	}
	return chosen, nil
}

// means reports whether a file of a data set is among those that the reference asks for.
func (r Ref) means(name string) bool {
	switch {
	case r.File == "":
		return true
	case r.pattern():
		return matches(r.File, name)
	}
	return strings.HasPrefix(name, r.File+"/")
}

// ofTrain reports whether a file belongs to the split train by its name or its folder's.
func ofTrain(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if rest, ok := strings.CutPrefix(part, "train"); ok && (rest == "" || strings.ContainsAny(rest[:1], "-_.0123456789")) {
			return true
		}
	}
	return false
}

// sample lists the first few safe names.
func sample(names []string) string {
	const some = 8
	var safe []string
	for _, n := range names {
		if CheckName(n) == nil && (dataKind(n) >= 0 || path.Ext(n) == "") {
			safe = append(safe, n)
		}
	}
	slices.Sort(safe)
	if len(safe) > some {
		safe = append(safe[:some:some], "…")
	}
	return strings.Join(safe, ", ")
}

// A data set is whole in the cache if all files that a reference means are there, so that the names of all files of a commit are kept.
func listingName(commit string) string { return path.Join("listings", commit) }

// writeListing keeps the names of a commit's files, one a line. Names that are not safe could not be downloaded.
func (r *repository) writeListing(commit string, names []string) error {
	var text strings.Builder
	for _, n := range names {
		if CheckName(n) == nil {
			text.WriteString(n + "\n")
		}
	}
	return r.write(listingName(commit), text.String())
}

// listing returns what writeListing kept; nothing is a fault of kind NotFound.
func (r *repository) listing(commit string) ([]string, error) {
	file, err := r.root.Open(listingName(commit))
	if err != nil {
		return nil, r.fault(listingName(commit), "cannot be read", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxListing))
	if err != nil {
		return nil, r.fault(listingName(commit), "cannot be read", err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), nil
}
