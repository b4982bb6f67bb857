package workload

import (
	"errors"

	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// openGraph opens a session on a graph of its own; closeGraph closes both.
func openGraph(g *graphdef.Graph, config []byte) (*tfbind.Session, error) {
	def, err := g.Bytes()
	if err != nil {
		return nil, err
	}
	graph, err := tfbind.NewGraph()
	if err != nil {
		return nil, err
	}
	if err := graph.Import(def, ""); err != nil {
		return nil, errors.Join(err, graph.Close())
	}
	s, err := tfbind.NewSession(graph, config)
	if err != nil {
		return nil, errors.Join(err, graph.Close())
	}
	return s, nil
}

// closeGraph closes a session and the graph that it does not own.
func closeGraph(s *tfbind.Session) error {
	if s == nil {
		return nil
	}
	return errors.Join(s.Close(), s.Graph().Close())
}

// find looks an output up.
func find(s *tfbind.Session, name string, into *tfbind.Output) (err error) {
	*into, err = s.Graph().Output(name)
	return err
}

// closeErr closes a job that was not begun.
func closeErr(j job) error {
	_, err := j.close()
	return err
}
