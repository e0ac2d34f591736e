package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"apr/collective"
	"apr/device"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
)

// Variables by which a rank of a measurement is told what it is.
const (
	benchRankVariable = "APR_BENCH_RANK"
	benchMeetVariable = "APR_BENCH_RENDEZVOUS"
)

// benchParty are the ranks of a measurement, all on this machine. Rank 0 starts the others with its own command line.
type benchParty struct {
	rank, world int
	addr        string
	secret      []byte
	listener    net.Listener
	children    []*exec.Cmd
	comm        collective.Comm
}

// party starts the other ranks, or says which one this process is.
func (o *benchOptions) party(e *cli.Env) (*benchParty, error) {
	p := &benchParty{world: o.worldSize}
	if p.world == 1 {
		return p, nil
	}
	if v := e.Getenv(benchRankVariable); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n >= p.world {
			return nil, fault.In(fault.Usage, benchRankVariable, "%q is no rank above 0 of %d", v, p.world)
		}
		p.rank, p.addr, p.secret = n, e.Getenv(benchMeetVariable), []byte(e.Getenv(secretVariable))
		return p, nil
	}
	var err error
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fault.New(fault.Network, "no port to meet the other ranks at").Because(err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fault.New(fault.Other, "the program's own path is not known").Because(err)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	p.addr, p.secret = p.listener.Addr().String(), []byte(hex.EncodeToString(secret))
	for r := 1; r < p.world; r++ {
		c := exec.Command(self, e.Command[1:]...)
		c.Env = append(e.Environ(), benchRankVariable+"="+strconv.Itoa(r), benchMeetVariable+"="+p.addr,
			secretVariable+"="+string(p.secret))
		c.Stderr = e.Err // what goes wrong there; its figures are rank 0's
		if err := c.Start(); err != nil {
			p.close()
			return nil, fault.New(fault.Other, "rank %d cannot be started", r).Because(err)
		}
		p.children = append(p.children, c)
	}
	return p, nil
}

// index is the GPU of this rank.
func (p *benchParty) index() int { return p.rank }

// join lets the ranks meet once their devices are open.
func (p *benchParty) join(ctx context.Context, dev *opened) (ranks distill.Ranks, err error) {
	if p.world == 1 {
		return ranks, nil
	}
	h := collective.Hello{Rank: p.rank, World: p.world, Who: fmt.Sprint("process ", os.Getpid()),
		Fields: []collective.Field{{Name: "device", Value: dev.Info().Kind + " " + dev.Info().Name}}}
	o := collective.Options{Secret: p.secret, Wait: 5 * time.Minute, Silence: silenceLimit}
	if p.rank == 0 {
		p.comm, err = collective.Serve(ctx, p.listener, h, o)
	} else {
		p.comm, err = collective.Join(ctx, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", p.addr)
		}, h, o)
	}
	if err != nil {
		return ranks, err
	}
	ranks.Comm = p.comm
	if dev.gpu != nil {
		ranks.Joined = true
		err = distill.JoinDevices(p.comm, device.Joiner(dev.gpu))
	}
	return ranks, err
}

// close ends the ranks that party started; those that have done their part end by themselves.
func (p *benchParty) close() {
	if p.listener != nil {
		_ = p.listener.Close() // the group does it, too
	}
	if p.comm != nil {
		_ = p.comm.Close() // nobody waits for it
	}
	limit := patienceOnFailure
	if p.comm != nil {
		limit = patienceWithRanks
	}
	late := time.AfterFunc(limit, func() {
		for _, c := range p.children {
			_ = c.Process.Kill()
		}
	})
	defer late.Stop()
	for _, c := range p.children {
		_ = c.Wait() // rank 0 has said what went wrong
	}
}
