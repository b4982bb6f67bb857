package session

import (
	"encoding/binary"
	"errors"

	"steadyfit/internal/contract"
	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// sumSize is the number of values in an exchange of integers.
const sumSize = 1 << 13

// sumPrefix begins the names of the operations of sumGraph.
const sumPrefix = "steadyfit_sum/"

// sumGraph returns the operations of a sum of integers over all ranks.
func (s *Session) sumGraph() ([]byte, error) {
	g := &graphdef.Graph{}
	key := func(name string, value int) string {
		g.Constant(sumPrefix+name, tfbind.Int32, binary.LittleEndian.AppendUint32(nil, uint32(value)))
		return sumPrefix + name
	}
	ranks := len(s.rank.Workers)
	g.Add(sumPrefix+"own", "Placeholder", graphdef.Attrs{"dtype": graphdef.Type(tfbind.Int64),
		"shape": graphdef.Shape([]int64{sumSize})}).
		Add(sumPrefix+"sum", "CollectiveReduceV2", graphdef.Attrs{"T": graphdef.Type(tfbind.Int64),
			"merge_op": graphdef.Text("Add"), "final_op": graphdef.Text("Id")},
			sumPrefix+"own", key("ranks", ranks), key("group", contract.GroupKey(ranks)),
			key("instance", contract.FirstInstance-1))
	return g.Bytes()
}

func prepareSum(tf *tfbind.Session) (*tfbind.Step, error) {
	own, err := tf.Graph().Output(sumPrefix + "own")
	sum, errSum := tf.Graph().Output(sumPrefix + "sum")
	if err = errors.Join(err, errSum); err != nil {
		return nil, err
	}
	return tf.Prepare([]tfbind.Output{own}, []tfbind.Output{sum}, tfbind.RunOptions{Abort: true, Proto: rankOptions})
}

// sum replaces values by their sums over all ranks.
func (s *Session) sum(values []int64) error {
	step, buf := s.native.rank.sum, make([]int64, sumSize)
	for len(values) > 0 {
		n := copy(buf, values)
		clear(buf[n:])
		if err := step.Set(0, buf, sumSize); err != nil {
			return err
		}
		if err := s.rank.run(step); err != nil {
			return err
		}
		sums, _, err := step.Read(0, buf)
		if err != nil {
			return err
		}
		copy(values[:n], sums.([]int64))
		values = values[n:]
	}
	return nil
}

// Gather returns the values of all ranks, in their order.
func (g group) Gather(value int64) ([]int64, error) {
	all := make([]int64, len(g.s.rank.Workers))
	all[g.s.rank.Rank] = value
	return all, g.s.sum(all)
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
	_, err := binary.Decode(padded, binary.LittleEndian, words)
	if err == nil {
		err = g.s.sum(words)
	}
	if err == nil {
		_, err = binary.Encode(padded, binary.LittleEndian, words)
	}
	return padded[:size[0]], err
}
