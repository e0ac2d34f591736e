package convert_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"apr/convert"
)

// A folder of float32 weights becomes one .apr file of bfloat16 matrices; what that costs is in the report.
func Example() {
	dir, err := os.MkdirTemp("", "convert")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	c, err := convert.Open("../testdata/golden/trajectory/student")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	r, err := convert.Write(context.Background(), c, filepath.Join(dir, "student.apr"), convert.Options{Scheme: "bf16", Version: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	const name = "model.layers.0.mlp.up_proj.weight"
	fmt.Println(name, "is", r.DTypes[name])
	fmt.Println("error below 0.001:", r.RMSE[name] > 0 && r.RMSE[name] < 1e-3)
	fmt.Println("model.norm.weight is", r.DTypes["model.norm.weight"])
	// Output:
	// model.layers.0.mlp.up_proj.weight is bf16
	// error below 0.001: true
	// model.norm.weight is f32
}
