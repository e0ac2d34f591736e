// Package slow does not come to an end.
package slow
