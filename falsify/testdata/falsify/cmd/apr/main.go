// Command apr of the fixture prints one JSON object.
package main

import (
	"fmt"
	"os"
	"strings"

	"fixture/good"
)

func main() {
	fmt.Printf("{\"six\": %d, \"list\": [{\"args\": %q}]}\n", good.Double(3), strings.Join(os.Args[1:], " "))
	os.Exit(good.Double(2))
}
