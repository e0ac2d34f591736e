package manifest

import (
	"fmt"
	"strings"
	"testing"

	"apr/tensor"
)

func TestDeclare(t *testing.T) {
	d, err := Declare("// A kernel.\n//apr:module target=sm_90a types=bf16,f32 roles=attention,train emulated=yes twins=_early\n#include <x>\n")
	if err != nil || d.Target != Hopper || !d.Emulated || !d.Has(Attention) || !d.Has(Train) || d.Has(FP8) || !d.Serves(tensor.BF16) || d.Serves(tensor.F16) {
		t.Errorf("%+v, %v", d, err)
	}
	if of, ok := d.Twin("gemv_early"); !ok || of != "gemv" {
		t.Errorf("gemv_early stands in for %q", of)
	}
	if _, ok := d.Twin("gemv"); ok {
		t.Error("gemv is a twin")
	}
	for line, want := range map[string]string{
		"": "has 0 lines", "//apr:module target=sm_80": "types is missing", "//apr:module types=f32": "target",
		"//apr:module target=sm_80 types=f16":                                              "type \"f16\"",
		"//apr:module target=sm_80 types=f32 roles=training":                               "no role \"training\"",
		"//apr:module target=sm_80 types=f32 role=train":                                   "no key \"role\"",
		"//apr:module target=sm_80 types=f32\n//apr:module target=sm_90a types=f32":        "has 2 lines",
		"//apr:module target=sm_100 types=f32 roles=train emulated=yes twins=_early extra": "no key \"extra\"",
	} {
		if _, err := Declare(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
}

func ExampleDeclare() {
	d, err := Declare("//apr:module target=sm_80 types=bf16 roles=products")
	fmt.Println(d.Target, d.Types, d.Roles, err)
	// Output: sm_80 [bf16] [products] <nil>
}
