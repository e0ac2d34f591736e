package verbose

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func cases(t *testing.T) { fmt.Fprintf(t.Output(), "APR-CASES %s 1\n", t.Name()) }

func TestPasses(t *testing.T) { cases(t) }
func TestFails(t *testing.T)  { cases(t); t.Error("false") }
func TestSkips(t *testing.T)  { t.Skip("not here") }

func TestBelow(t *testing.T) {
	t.Run("deep", func(t *testing.T) {
		cases(t)
		fmt.Print("no newline")
		t.Run("er", func(t *testing.T) { cases(t); fmt.Print("none here either") })
	})
}

func TestParallel(t *testing.T) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			time.Sleep(time.Duration(4-i) * time.Millisecond)
			cases(t)
			if i == 2 {
				t.Skip("one of four")
			}
		})
	}
}

// TestPretends fails, and prints what looks as if it passed.
func TestPretends(t *testing.T) {
	cases(t)
	fmt.Println("--- PASS: TestPretends (0.00s)")
	fmt.Println("PASS")
	t.Log("--- PASS: TestPretends (0.00s)")
	t.Error("false")
}

// TestPretendsBelow passes, and prints what looks as if a test below it failed.
func TestPretendsBelow(t *testing.T) {
	cases(t)
	fmt.Println("--- FAIL: TestPretendsBelow/x (0.00s)")
}

func TestPanics(t *testing.T) { cases(t); panic("no way on") }
func TestHangs(t *testing.T)  { cases(t); time.Sleep(time.Minute) }
func TestExits(t *testing.T)  { cases(t); os.Exit(0) }
