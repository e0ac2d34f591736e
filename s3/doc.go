// Package s3 keeps the files of a teacher's cache under a prefix of a bucket of S3, or of a store that speaks its
// protocol. Objects appear whole, and only where there is none: every PUT carries If-None-Match: *.
//
//	where, err := s3.Parse("s3://bucket/prefix", os.Getenv)
//	store := s3.Open(ctx, where, log) // a cache.Store
//
// Three requests are all that a cache needs: HEAD, GET of a whole object, PUT. AWS's own signer signs them
// (Signature Version 4); what fails for a while is tried again, later each time.
//
// Caveats. Credentials come from the environment alone: no profiles, no roles of a machine. They are in no error, log or
// record. Redirects are not followed. Downloads go to a temporary file.
package s3
