package runs_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	runs "apr/run/list"
)

// A run is a folder with a manifest, found by the beginning of its name.
func Example() {
	dir, err := os.MkdirTemp("", "runs")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"mine", "other"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			log.Fatal(err)
		}
		manifest := fmt.Sprintf(`{"schema": "apr.manifest/1", "run_id": %q, "started_at": "2026-11-24T10:00:00Z"}`, name)
		if err := os.WriteFile(filepath.Join(dir, name, "manifest.json"), []byte(manifest), 0o600); err != nil {
			log.Fatal(err)
		}
	}
	all, err := runs.List(dir)
	fmt.Println(len(all), err)
	found, err := runs.Find(dir, "mi")
	fmt.Println(filepath.Base(found), err)
	// Output:
	// 2 <nil>
	// mine <nil>
}
