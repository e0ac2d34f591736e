package adapter_test

import (
	"fmt"
	"log"

	"apr/adapter"
	"apr/modelfile"
)

// Adapters of rank 8 on two matrices of each layer, their values not made yet.
func ExampleNew() {
	f, err := modelfile.Open("../testdata/models/gosrc")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	a, err := adapter.New(f.Config, []string{"q", "v"}, 8, 16, 0)
	if err != nil {
		log.Fatal(err)
	}
	m := a.Modules[0]
	fmt.Println(len(a.Modules), "modules,", a.Parameters(), "parameters")
	fmt.Println(m.Slot.Name, m.Slot.Shape, "rank", m.Rank, "scale", m.Scale)
	// Output:
	// 12 modules, 43008 parameters
	// model.layers.0.self_attn.q_proj.weight [256 256] rank 8 scale 2
}
