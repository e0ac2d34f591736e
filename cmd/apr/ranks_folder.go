package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"apr/collective"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
)

// folder is a folder that all ranks see, where they meet: rank 0 writes its address and a secret into it, the others
// read them. Whoever may read the folder's files may join.
type folder struct {
	dir   string
	every time.Duration // between two looks
	wrote bool
}

// meetingPoint is what rank 0 writes.
type meetingPoint struct {
	Addr       string `json:"addr"`
	Secret     string `json:"secret"`
	Generation int    `json:"generation"`
	Who        string `json:"who"`
}

// newFolder reads the DIR of file://DIR.
func newFolder(text string) (*folder, error) {
	dir, ok := strings.CutPrefix(text, "//")
	if !ok || dir == "" {
		return nil, fault.New(fault.Usage, "--rendezvous file:%s is not file://DIR", text).WithID("E-RANKS-050")
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fault.In(fault.NotFound, dir, "there is no such folder").
			WithHint("make it on a file system that all machines share, and give its path on each").WithID("E-RANKS-051")
	case err != nil:
		return nil, fault.In(fault.IO, dir, "cannot be read").Because(err).WithID("E-RANKS-051")
	case !st.IsDir():
		return nil, fault.In(fault.NotFound, dir, "is no folder").WithID("E-RANKS-051")
	}
	return &folder{dir: dir, every: 200 * time.Millisecond}, nil
}

func (f *folder) point() string        { return filepath.Join(f.dir, "apr-rendezvous.json") }
func (f *folder) mark(rank int) string { return filepath.Join(f.dir, fmt.Sprintf("apr-rank-%d", rank)) }
func (f *folder) marked(rank int) string {
	text, _ := readfile.String(f.mark(rank), 1<<10)
	return text
}

// who describes this process, for messages.
func who() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
}

// read returns what rank 0 has written; false: nothing whole is there.
func (f *folder) read() (p meetingPoint, ok bool) {
	text, err := readfile.String(f.point(), 1<<16)
	return p, err == nil && json.Unmarshal([]byte(text), &p) == nil && p.Addr != ""
}

// open is rank 0's: it listens on an address of this machine and writes it into the folder. Another run's rank 0 that
// still waits there is a fault; what a run left that is over is replaced.
func (f *folder) open(generation int) (net.Listener, []byte, error) {
	if old, ok := f.read(); ok {
		if c, err := net.DialTimeout("tcp", old.Addr, time.Second); err == nil {
			_ = c.Close()
			return nil, nil, fault.In(fault.Usage, f.dir, "another run meets there (%s)", old.Who).
				WithHint("each run needs a folder of its own").WithID("E-RANKS-052")
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(ownAddress(), "0"))
	if err != nil {
		return nil, nil, fault.New(fault.Network, "no port to meet the other ranks at").Because(err)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	p := meetingPoint{Addr: l.Addr().String(), Secret: hex.EncodeToString(secret), Generation: generation, Who: who()}
	text, err := json.Marshal(p)
	if err == nil {
		err = atomicfile.WritePrivate(f.point(), text, true)
	}
	if err != nil {
		_ = l.Close()
		return nil, nil, err
	}
	f.wrote = true
	return l, []byte(p.Secret), nil
}

// ownAddress is the first address of this machine that others can reach, else that of itself.
func ownAddress() string {
	addrs, _ := net.InterfaceAddrs() // without them it is the machine's own
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

// arrive leaves a mark of a rank above 0, by which rank 0 tells a folder that is not shared from a rank that is cut
// off.
func (f *folder) arrive(rank int) error {
	if err := os.WriteFile(f.mark(rank), []byte(who()), 0o600); err != nil {
		return fault.In(fault.IO, f.dir, "rank %d cannot write there", rank).Because(err).WithID("E-RANKS-053")
	}
	return nil
}

// leave takes away what this rank has written.
func (f *folder) leave(rank int) {
	switch {
	case rank > 0:
		_ = os.Remove(f.mark(rank)) // a mark that stays is overwritten by the next run's
	case f.wrote:
		_ = os.Remove(f.point())
	}
}

// meet joins the ranks.
func (f *folder) meet(ctx context.Context, l net.Listener, h collective.Hello, o collective.Options) (collective.Comm,
	error) {
	if h.Rank > 0 {
		return f.join(ctx, h, o)
	}
	comm, err := collective.Serve(ctx, l, h, o)
	if fault.KindOf(err) != fault.Network || err == nil {
		return comm, err
	}
	var unseen, seen []string
	for r := 1; r < h.World; r++ {
		if text := f.marked(r); text != "" {
			seen = append(seen, fmt.Sprintf("rank %d (%s)", r, text))
		} else {
			unseen = append(unseen, fmt.Sprint(r))
		}
	}
	return nil, f.explain(err, unseen, seen)
}

// explain says of ranks that did not come whether they were in the folder.
func (f *folder) explain(err error, unseen, seen []string) error {
	var e *fault.Error
	if !errors.As(err, &e) {
		return err
	}
	var hints []string
	if len(unseen) > 0 {
		hints = append(hints, fmt.Sprintf("%s has no trace of rank %s: not started, or the folder is not shared between the "+
			"machines", f.dir, strings.Join(unseen, ", ")))
	}
	if len(seen) > 0 {
		hints = append(hints, "in the folder were "+strings.Join(seen, ", ")+"; those that are missing do not reach this "+
			"machine's port")
	}
	return e.WithHint("%s", strings.Join(hints, "; "))
}

// join is a rank above 0: it looks for rank 0's address until it is there and answers. Addresses that an earlier run
// left do not answer; the file is read anew before each attempt.
func (f *folder) join(ctx context.Context, h collective.Hello, o collective.Options) (collective.Comm, error) {
	began := time.Now()
	var last meetingPoint
	var err error
	for {
		left := o.Wait - time.Since(began)
		if left <= 0 || ctx.Err() != nil {
			break
		}
		p, ok := f.read()
		if !ok || p.Generation < h.Generation {
			select {
			case <-ctx.Done():
			case <-time.After(min(f.every, left)):
			}
			continue
		}
		last, h.Generation = p, p.Generation
		var comm collective.Comm
		comm, err = collective.Join(ctx, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr)
		}, h, collective.Options{Secret: []byte(p.Secret), Wait: min(left, 10*f.every), Silence: o.Silence})
		if err == nil {
			return comm, nil
		}
		if now, _ := f.read(); fault.KindOf(err) == fault.Invalid && now == p {
			return nil, err
		}
	}
	waited := time.Since(began).Round(time.Second / 10)
	if last.Addr == "" {
		return nil, fault.New(fault.Network, "rank %d saw no rank 0 in %s within %v", h.Rank, f.dir, waited).
			WithHint("rank 0 has not started, or the folder is not shared between the machines").WithID("E-RANKS-054")
	}
	return nil, fault.New(fault.Network, "rank %d did not reach rank 0 (%s) at %s within %v", h.Rank, last.Who, last.Addr,
		waited).Because(err).WithHint("%s is shared; the machines do not reach each other's ports", f.dir).
		WithID("E-RANKS-055")
}
