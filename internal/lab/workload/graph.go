package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strconv"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/cell"
	"steadyfit/tfbind"
)

// W5: an operation is added to the graph for each step, and run.

// constFloats are 4 KiB.
const constFloats = 4 << 10 / 4

type growing struct {
	plain
	untrained
	session *tfbind.Session
	sealed  bool
	out     tfbind.Output
	raw     []byte
}

func newW5(_ context.Context, c *cell.Child) (job, error) {
	graph, err := c.Choice("graph", "grow", "sealed")
	if err != nil {
		return nil, err
	}
	j := &growing{sealed: graph == "sealed", raw: make([]byte, constFloats*4)}
	if j.session, err = openGraph(new(graphdef.Graph), c.Spec.Config); err != nil {
		return nil, err
	}
	if j.sealed {
		if err := j.grow(0); err != nil {
			return nil, errors.Join(err, closeGraph(j.session))
		}
	}
	return j, nil
}

// grow adds a constant of 4 KiB and an Identity of it.
func (j *growing) grow(n int) error {
	binary.LittleEndian.PutUint32(j.raw, uint32(n)) // no two constants are the same
	id := strconv.Itoa(n)
	def, err := new(graphdef.Graph).Constant("c"+id, tfbind.Float32, j.raw, constFloats).
		Add("i"+id, "Identity", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}, "c"+id).Bytes()
	if err != nil {
		return err
	}
	if err := j.session.Graph().Import(def, ""); err != nil {
		return err
	}
	return find(j.session, "i"+id, &j.out)
}

func (j *growing) step(ctx context.Context, n int) (float64, error) {
	if !j.sealed {
		if err := j.grow(n); err != nil {
			return 0, err
		}
	}
	out, err := j.session.Run(ctx, nil, []tfbind.Output{j.out})
	if err != nil {
		return 0, err
	}
	return 0, out.Close()
}

func (j *growing) close() (tfbind.Counts, error) { return tfbind.Counts{}, closeGraph(j.session) }

// W6: each step asks for another set of the graph's outputs.

// outputs is how many there are; all their sets but the empty one are asked for.
const outputs = 14

type fetching struct {
	plain
	untrained
	session *tfbind.Session
	in      *tfbind.Tensor
	feed    tfbind.Output
	all     [outputs]tfbind.Output
	sets    []int // bits; in an order without a trend in their size
	fixed   bool
}

func newW6(_ context.Context, c *cell.Child) (job, error) {
	fetches, err := c.Choice("fetches", "varying", "fixed")
	if err != nil {
		return nil, err
	}
	g := new(graphdef.Graph).Placeholder("x", tfbind.Float32)
	for i := range outputs {
		g.Add("y"+strconv.Itoa(i), "AddV2", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}, "x", "x")
	}
	j := &fetching{fixed: fetches == "fixed", sets: rand.New(rand.NewPCG(uint64(c.Spec.Seed), 6)).Perm(1<<outputs - 1)}
	if j.session, err = openGraph(g, c.Spec.Config); err != nil {
		return nil, err
	}
	j.in, err = tfbind.NewTensor(make([]float32, 16), 16)
	err = errors.Join(err, find(j.session, "x", &j.feed))
	for i := range j.all {
		err = errors.Join(err, find(j.session, "y"+strconv.Itoa(i), &j.all[i]))
	}
	if err != nil {
		return nil, errors.Join(err, closeErr(j))
	}
	return j, nil
}

func (j *fetching) step(ctx context.Context, n int) (float64, error) {
	which := 0
	if !j.fixed {
		which = n % len(j.sets)
	}
	var fetch []tfbind.Output
	for i, o := range j.all {
		if (j.sets[which]+1)&(1<<i) != 0 {
			fetch = append(fetch, o)
		}
	}
	out, err := j.session.Run(ctx, tfbind.Feeds{j.feed: j.in}, fetch)
	if err != nil {
		return 0, err
	}
	return 0, out.Close()
}

func (j *fetching) close() (tfbind.Counts, error) {
	return tfbind.Counts{}, errors.Join(j.in.Close(), closeGraph(j.session))
}
