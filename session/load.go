package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"steadyfit/internal/graphdef"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// loadModel loads the model into TensorFlow. Ranks use TensorFlow's own loader.
//
// The first run of a signature rewrites the whole graph, with all layers, whatever the signature does. If
// savedmodels.Model.ByKey is true, the variables get their values in a graph that has only them, and the program is
// added later. TensorFlow's own loader restores in the whole graph, which takes a second for MobileNetV2.
func (s *Session) loadModel() (*tfbind.Session, error) {
	if s.rank != nil {
		return tfbind.LoadSavedModel(s.model.Dir, s.model.Tags, s.config, s.rank.server)
	}
	program, err := s.model.Program(s.opts.Only)
	if err != nil {
		return nil, err
	}
	tf, err := tfbind.NewSession(nil, s.config)
	if err != nil {
		return nil, err
	}
	if err := s.fill(tf, program); err != nil {
		return nil, errors.Join(fmt.Errorf("load SavedModel %s: %w", s.model.Dir, err), tf.Close())
	}
	return tf, nil
}

// fill sets the variables in an empty session, and adds the program.
func (s *Session) fill(tf *tfbind.Session, program *savedmodels.Program) error {
	ctx, own := context.Background(), ownWeights(s.model)
	if s.model.ByKey {
		if err := s.restoreGroups(ctx, tf, own, changingGroup, frozenGroup); err != nil {
			return err
		}
	}
	if err := tf.Graph().Import(program.Graph, ""); err != nil {
		return err
	}
	if _, err := os.Stat(own + ".index"); err == nil && !s.model.ByKey && s.model.Saver != nil {
		if err := s.restoreBySaver(ctx, tf, own); err != nil {
			return err
		}
	}
	if program.Init == "" {
		return nil
	}
	feeds := tfbind.Feeds{}
	for name, path := range program.Assets {
		input, err := tf.Graph().Output(name)
		if err != nil {
			return err
		}
		if feeds[input], err = tfbind.NewTensor([]string{path}); err != nil {
			return err
		}
		defer feeds[input].Close()
	}
	_, err := tf.Run(ctx, feeds, nil, tfbind.RunOptions{Targets: []string{program.Init}})
	return err
}

const (
	// loadPrefix is the prefix of the names of the operations of loadGraph.
	loadPrefix = "steadyfit_load"
	// changingGroup and frozenGroup are the operations of loadGraph that set the variables that training changes,
	// and the other variables.
	changingGroup, frozenGroup = "changing", "frozen"
)

// loadGraph returns the operations that set variables from files. A handle with the same name and container as
// one in the program refers to the same variable.
func loadGraph(m *savedmodels.Model) ([]byte, error) {
	g := (&graphdef.Graph{}).Placeholder("prefix", tfbind.String)
	vars, changing := stateVariables(m)
	for _, group := range []struct {
		name string
		vars []savedmodels.Variable
	}{{changingGroup, vars[:changing]}, {frozenGroup, vars[changing:]}} {
		var keys, assigned []string
		var types []tfbind.DType
		for i, v := range group.vars {
			keys, types = append(keys, v.Key), append(types, v.DType)
			id := group.name + strconv.Itoa(i)
			g.Add("handle_"+id, "VarHandleOp", handleAttrs(v)).
				Add("assign_"+id, "AssignVariableOp", graphdef.Attrs{"dtype": graphdef.Type(v.DType)},
					"handle_"+id, "restored_"+group.name+":"+strconv.Itoa(i))
			assigned = append(assigned, "^assign_"+id)
		}
		if len(keys) > 0 {
			g.Texts("keys_"+group.name, keys...).Texts("whole_"+group.name, make([]string, len(keys))...).
				Add("restored_"+group.name, "RestoreV2", graphdef.Attrs{"dtypes": graphdef.Types(types)},
					"prefix", "keys_"+group.name, "whole_"+group.name)
		}
		g.Add(group.name, "NoOp", nil, assigned...)
	}
	return g.Bytes()
}

// handleAttrs returns the attributes of an operation that refers to a variable of the model.
func handleAttrs(v savedmodels.Variable) graphdef.Attrs {
	shape := graphdef.AnyShape()
	if !v.UnknownRank {
		shape = graphdef.Shape(v.Shape)
	}
	return graphdef.Attrs{"dtype": graphdef.Type(v.DType), "shape": shape,
		"shared_name": graphdef.Text(v.Name), "container": graphdef.Text(v.Container)}
}

// restoreGroups sets groups of variables from the files with a prefix.
func (s *Session) restoreGroups(ctx context.Context, tf *tfbind.Session, prefix string, groups ...string) error {
	graph := tf.Graph()
	if _, err := graph.Output(loadPrefix + "/prefix"); errors.Is(err, tfbind.ErrNotFound) {
		def, err := loadGraph(s.model)
		if err != nil {
			return err
		}
		if err := graph.Import(def, loadPrefix); err != nil {
			return err
		}
	}
	input, err := graph.Output(loadPrefix + "/prefix")
	if err != nil {
		return err
	}
	for i, name := range groups {
		groups[i] = loadPrefix + "/" + name
	}
	return runRestore(ctx, tf, prefix, input, groups...)
}

// restoreBySaver sets all variables and what else the model's saver restores from the files with a prefix.
func (s *Session) restoreBySaver(ctx context.Context, tf *tfbind.Session, prefix string) error {
	saver := s.model.Saver
	if saver == nil {
		return errNoSaver(s.model)
	}
	input, err := tf.Graph().Output(saver.FilenameTensor)
	if err != nil {
		return err
	}
	return runRestore(ctx, tf, prefix, input, saver.RestoreOp)
}

func runRestore(ctx context.Context, tf *tfbind.Session, prefix string, input tfbind.Output,
	targets ...string) error {
	return withFiles(prefix, func(name *tfbind.Tensor) error {
		_, err := tf.Run(ctx, tfbind.Feeds{input: name}, nil, tfbind.RunOptions{Targets: targets, Proto: inCaller(tf)})
		return err
	})
}
