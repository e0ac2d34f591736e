package main

import (
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"apr/s3/s3test"
)

// bucketKey is where a script keeps its store.
type bucketKey struct{}

// scriptBucket is the store of a script.
type scriptBucket struct{ *s3test.Server }

// bucketCommand starts and steers a store of this machine that speaks S3, with the bucket "bucket":
//
//	bucket start              starts it, and sets the AWS variables
//	bucket FAULT PERCENT      lets a share of all requests meet a fault of s3test; 0 ends it
//	bucket change KEY N       inverts a bit of byte N of an object
//	bucket copy FROM TO       puts the bytes of one object into another
//	bucket remove KEY         removes an object
//	bucket has KEY            requires an object
//	bucket once               requires that no object was made twice
//	bucket secret             requires that stdout and stderr, and the files that follow, hold no credential
func bucketCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: bucket VERB …")
	}
	b := ts.Value(bucketKey{}).(*scriptBucket)
	switch verb, args := args[0], args[1:]; verb {
	case "start":
		b.Server = s3test.New(1)
		ts.Defer(b.Close)
		for _, kv := range b.Environ() {
			name, value, _ := strings.Cut(kv, "=")
			ts.Setenv(name, value)
		}
	case "change":
		object := append([]byte{}, b.Object(args[0])...)
		object[number(ts, args[1])] ^= 1
		b.Set(args[0], object)
	case "copy":
		b.Set(args[1], b.Object(args[0]))
	case "remove":
		b.Set(args[0], nil)
	case "has":
		if b.Object(args[0]) == nil {
			ts.Fatalf("there are %v", b.Keys())
		}
	case "once":
		for key, n := range b.Made() {
			if n != 1 {
				ts.Fatalf("%s was made %d times", key, n)
			}
		}
	case "secret":
		text := ts.ReadFile("stdout") + ts.ReadFile("stderr")
		for _, name := range args {
			text += ts.ReadFile(name)
		}
		for _, secret := range []string{s3test.KeyID, s3test.Secret, s3test.Token} {
			if strings.Contains(text, secret) {
				ts.Fatalf("a credential is in the output")
			}
		}
	default:
		b.Misbehave(s3test.Fault(verb), float64(number(ts, args[0]))/100)
	}
}
