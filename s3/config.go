package s3

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"

	"apr/internal/fault"
)

// Scheme is how the name of a cache in a bucket begins.
const Scheme = "s3://"

// Is reports whether a name is that of a place in a bucket.
func Is(name string) bool { return strings.HasPrefix(name, Scheme) }

// Where is a prefix of a bucket, and how to get there.
type Where struct {
	Bucket, Prefix string

	endpoint *url.URL // of the bucket
	region   string
	keys     credentials
}

// String returns s3://bucket/prefix.
func (w Where) String() string { return strings.TrimSuffix(Scheme+w.Bucket+"/"+w.Prefix, "/") }

// credentials are never printed, whatever prints them.
type credentials struct{ secret *aws.Credentials }

func (credentials) String() string               { return "(hidden)" }
func (credentials) GoString() string             { return "(hidden)" }
func (credentials) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// in reports whether a text holds one of the credentials.
func (c credentials) in(text string) bool {
	if c.secret == nil {
		return false
	}
	for _, k := range []string{c.secret.AccessKeyID, c.secret.SecretAccessKey, c.secret.SessionToken} {
		if k != "" && strings.Contains(text, k) {
			return true
		}
	}
	return false
}

var (
	buckets  = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixes = regexp.MustCompile(`^[A-Za-z0-9!_.*'()=+@/-]*$`)
	regions  = regexp.MustCompile(`^[a-z0-9-]+$`)
)

// Parse reads s3://bucket/prefix, and from the environment AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
// AWS_SESSION_TOKEN (without them requests are not signed), AWS_REGION or AWS_DEFAULT_REGION (us-east-1), and
// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, which name a store that is not Amazon's.
func Parse(name string, getenv func(string) string) (Where, error) {
	bucket, prefix, _ := strings.Cut(strings.TrimPrefix(name, Scheme), "/")
	w := Where{Bucket: bucket, Prefix: strings.Trim(prefix, "/"), region: first(getenv, "AWS_REGION", "AWS_DEFAULT_REGION")}
	switch {
	case !buckets.MatchString(bucket):
		return w, fault.In(fault.Usage, name, "%q is no name of a bucket", bucket).WithHint("s3://bucket/prefix").WithID("E-S3-001")
	case !prefixes.MatchString(w.Prefix) || strings.Contains("/"+w.Prefix+"/", "/../") || strings.Contains("/"+w.Prefix+"/", "/./") || strings.Contains(w.Prefix, "//"):
		return w, fault.In(fault.Usage, name, "the prefix %q has characters or parts that not every store keeps as they are", w.Prefix).
			WithHint("letters, digits, - _ . and / between them").WithID("E-S3-001")
	}
	if w.region == "" {
		w.region = "us-east-1"
	}
	if !regions.MatchString(w.region) {
		return w, fault.In(fault.Usage, "AWS_REGION", "%q is no region", w.region).WithID("E-S3-002")
	}
	if err := w.readKeys(getenv); err != nil {
		return w, err
	}
	return w, w.readEndpoint(getenv)
}

func first(getenv func(string) string, names ...string) string {
	for _, name := range names {
		if v := getenv(name); v != "" {
			return v
		}
	}
	return ""
}

// readKeys reads the credentials.
func (w *Where) readKeys(getenv func(string) string) error {
	id, secret := getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY")
	if (id == "") != (secret == "") {
		return fault.New(fault.Usage, "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set").WithID("E-S3-003")
	}
	if id != "" {
		w.keys.secret = &aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: getenv("AWS_SESSION_TOKEN")}
	}
	return nil
}

// readEndpoint finds the bucket's address: Amazon's has the bucket in its host name, unless that has dots, which no
// certificate covers; others have it in the path.
func (w *Where) readEndpoint(getenv func(string) string) error {
	text := first(getenv, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	if text == "" {
		host := "s3." + w.region + ".amazonaws.com"
		w.endpoint = &url.URL{Scheme: "https", Host: w.Bucket + "." + host, Path: "/"}
		if strings.Contains(w.Bucket, ".") {
			w.endpoint = &url.URL{Scheme: "https", Host: host, Path: "/" + w.Bucket + "/"}
		}
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fault.New(fault.Usage, "AWS_ENDPOINT_URL is no http:// or https:// address without user, query and fragment").WithID("E-S3-004")
	}
	w.endpoint = u.JoinPath(w.Bucket, "/")
	return nil
}
