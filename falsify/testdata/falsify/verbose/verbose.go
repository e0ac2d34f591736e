// Package verbose has tests of every outcome.
package verbose
