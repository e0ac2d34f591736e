package prune_test

import (
	"fmt"
	"log"

	"apr/modelfile"
	"apr/prune"
)

// Layers at equal distances need no text to choose them by; the cut model is the opened one, seen through the cut.
func ExampleApply() {
	c, err := modelfile.OpenContainer("../testdata/models/gosrc")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	f, err := modelfile.Open("../testdata/models/gosrc")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	kept, err := prune.Choose(f.Config, prune.Target{Layers: 3, Choice: prune.Evenly}, nil)
	if err != nil {
		log.Fatal(err)
	}
	small, err := prune.Apply(c, kept, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(kept.Layers, f.Config.Parameters(), "→", small.Parameters())
	// Output: [0 3 5] 6854912 → 4492544
}
