package arena_test

import (
	"fmt"

	"apr/device/arena"
)

func Example() {
	a := arena.New(256)
	x := a.Place(1000)
	y := a.Place(500)
	a.Release(x)
	z := a.Place(300) // where x was
	fmt.Println(x, y, z, a.Peak())
	// Output: 0 1024 0 1536
}
