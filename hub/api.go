package hub

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// maxListing bounds the description of a repository.
const maxListing = 32 << 20

// list asks which commit a revision is, and which files it has. Every name that would leave the folder is refused.
func (c *Client) list(ctx context.Context, ref Ref) (commit string, names []string, err error) {
	what := ref.whole().String()
	kind := "models"
	if ref.Dataset {
		kind = "datasets"
	}
	u := c.url(append(append([]string{"api", kind}, strings.Split(ref.Repo, "/")...), "revision", ref.Revision)...)
	var text string
	err = c.retry(ctx, func() *problem {
		x, p := c.send(ctx, http.MethodGet, u, nil, what)
		if p != nil {
			return p
		}
		defer x.close()
		text, p = x.readAll(maxListing)
		return p
	})
	if err != nil {
		return "", nil, err
	}
	if commit, names, err = parseListing(text); err != nil {
		return "", nil, fault.In(fault.Network, what, "the server's description cannot be read").Because(err).WithID("E-HUB-022")
	}
	if err := checkCommit(commit, what); err != nil {
		return "", nil, err
	}
	if commitForm.MatchString(ref.Revision) && commit != ref.Revision {
		return "", nil, fault.In(fault.Network, what, "the server answers with commit %s", commit).WithID("E-HUB-023")
	}
	for _, name := range names {
		if escapes(name) {
			return "", nil, fault.In(fault.UnsafePath, what, "the server lists the file %q", clip(name)).WithID("E-HUB-004")
		}
	}
	return commit, names, nil
}

// parseListing reads {"sha": …, "siblings": [{"rfilename": …}, …]}, whatever else is there.
func parseListing(text string) (commit string, names []string, err error) {
	v, err := strictjson.Parse(text, strictjson.Options{})
	if err != nil {
		return "", nil, err
	}
	f := strictjson.NewFields(v)
	commit = f.Str("sha")
	siblings := f.Value("siblings")
	if err := f.Err(); err != nil {
		return "", nil, err
	}
	if err := siblings.Expect(strictjson.Array); err != nil {
		return "", nil, err
	}
	for item := range siblings.Items() {
		s := strictjson.NewFields(item)
		names = append(names, s.Str("rfilename"))
		if err := s.Err(); err != nil {
			return "", nil, err
		}
	}
	return commit, names, nil
}

// head asks for the hash and the size of a file.
func (c *Client) head(ctx context.Context, ref Ref, commit, name string) (File, error) {
	f := File{Name: name}
	what := ref.of(name).String()
	err := c.retry(ctx, func() *problem {
		x, p := c.send(context.WithValue(ctx, stayKey{}, true), http.MethodHead, c.fileURL(ref.place(), commit, name), nil, what)
		if p != nil {
			return p
		}
		defer x.close()
		if err := f.describe(x.Response, commit, what); err != nil {
			return &problem{err: err}
		}
		return nil
	})
	return f, err
}

// fileURL is the address of a file of the repository at repo on the hub.
func (c *Client) fileURL(repo, commit, name string) *url.URL {
	parts := append(strings.Split(repo, "/"), "resolve", commit)
	return c.url(append(parts, strings.Split(name, "/")...)...)
}

// describe reads hash and size from the headers of an answer: those of the linked content if there is one.
func (f *File) describe(resp *http.Response, commit, what string) error {
	h := resp.Header
	if got := h.Get("X-Repo-Commit"); got != "" && got != commit {
		return fault.In(fault.Network, what, "the server answers for commit %q, asked for %s", clip(got), commit).WithID("E-HUB-023")
	}
	etag, length := h.Get("X-Linked-Etag"), h.Get("X-Linked-Size")
	if etag == "" {
		etag = h.Get("ETag")
	}
	if length == "" && resp.StatusCode < 300 {
		length = h.Get("Content-Length")
	}
	f.etag = strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
	if err := checkETag(f.etag); err != nil {
		return placed(err, what)
	}
	size, err := strconv.ParseInt(length, 10, 64)
	if err != nil || size < 0 {
		return fault.In(fault.Network, what, "the server does not say the size of the file").WithID("E-HUB-024")
	}
	f.Size = size
	return nil
}

// placed adds what an error is about.
func placed(err error, what string) error {
	if f, ok := err.(*fault.Error); ok && f.Path == "" {
		f.Path = what
	}
	return err
}
