package session

import (
	"encoding/binary"
	"errors"
	"strconv"

	"steadyfit/internal/contract"
	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// sizes are the numbers of values that a small and a large sum can exchange.
var sizes = [2]int64{64, 1 << 17}

// sumGraph returns the operations of the sums of integers over all ranks.
func (s *Session) sumGraph() ([]byte, error) {
	g := &graphdef.Graph{}
	for i, size := range sizes {
		prefix := sumPrefix(i)
		key := func(name string, value int) string {
			g.Constant(prefix+name, tfbind.Int32, binary.LittleEndian.AppendUint32(nil, uint32(value)))
			return prefix + name
		}
		g.Add(prefix+"own", "Placeholder", graphdef.Attrs{"dtype": graphdef.Type(tfbind.Int64),
			"shape": graphdef.Shape([]int64{size})}).
			Add(prefix+"sum", "CollectiveReduceV2", graphdef.Attrs{"T": graphdef.Type(tfbind.Int64),
				"merge_op": graphdef.Text("Add"), "final_op": graphdef.Text("Id")},
				prefix+"own", key("ranks", len(s.rank.Workers)), key("group", contract.GroupKey(len(s.rank.Workers))),
				key("instance", contract.FirstInstance-1-i))
	}
	return g.Bytes()
}

func sumPrefix(i int) string { return "steadyfit_sum" + strconv.Itoa(i) + "/" }

func (s *Session) prepareSums(n *native) error {
	for i, step := range []**tfbind.Step{&n.rank.small, &n.rank.large} {
		own, err := n.tf.Graph().Output(sumPrefix(i) + "own")
		sum, errSum := n.tf.Graph().Output(sumPrefix(i) + "sum")
		if err = errors.Join(err, errSum); err != nil {
			return err
		}
		if *step, err = n.tf.Prepare([]tfbind.Output{own}, []tfbind.Output{sum},
			tfbind.RunOptions{Abort: true, Proto: rankOptions}); err != nil {
			return err
		}
	}
	return nil
}

// sum replaces values by their sums over all ranks.
func (s *Session) sum(values []int64) error {
	for len(values) > 0 {
		step, size := s.native.rank.large, sizes[1]
		if int64(len(values)) <= sizes[0] {
			step, size = s.native.rank.small, sizes[0]
		}
		n := min(len(values), int(size))
		buf := make([]int64, size)
		copy(buf, values[:n])
		if err := step.Set(0, buf, size); err != nil {
			return err
		}
		if err := s.rank.run(step); err != nil {
			return err
		}
		t, err := step.Output(0)
		if err != nil {
			return err
		}
		sums, err := t.Slice(buf)
		if err = errors.Join(err, t.Close()); err != nil {
			return err
		}
		copy(values[:n], sums.([]int64))
		values = values[n:]
	}
	return nil
}

// gather returns the values of all ranks, in their order.
func (s *Session) gather(value int64) ([]int64, error) {
	all := make([]int64, len(s.rank.Workers))
	all[s.rank.Rank] = value
	return all, s.sum(all)
}

func (g group) Share(own []byte, from int) ([]byte, error) {
	if g.Rank() != from {
		own = nil
	}
	size := []int64{int64(len(own))}
	if err := g.s.sum(size); err != nil {
		return nil, err
	}
	words := make([]int64, (size[0]+7)/8)
	padded := make([]byte, 8*len(words))
	copy(padded, own)
	for i := range words {
		words[i] = int64(binary.LittleEndian.Uint64(padded[8*i:]))
	}
	if err := g.s.sum(words); err != nil {
		return nil, err
	}
	for i, word := range words {
		binary.LittleEndian.PutUint64(padded[8*i:], uint64(word))
	}
	return padded[:size[0]], nil
}
