package session

import (
	"context"
	"fmt"
	"os"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// loadModel loads the model into TensorFlow. Ranks use TensorFlow's own loader.
//
// The first run of a signature rewrites the whole graph, with all layers, whatever the signature does. If
// savedmodels.Model.ByKey is true, the variables get their values in a graph that has only them, and the program is
// added later. TensorFlow's own loader restores in the whole graph, which takes a second for MobileNetV2.
func (s *Session) loadModel(n *native) (err error) {
	if s.rank != nil {
		n.tf, err = tfbind.LoadSavedModel(s.model.Dir, s.model.Tags, s.config, s.rank.server)
		return err
	}
	program, err := s.model.Program(s.opts.Only)
	if err != nil {
		return err
	}
	if n.tf, err = tfbind.NewSession(nil, s.config); err != nil {
		return gpuError(s.opts.Device, err)
	}
	if err := s.fill(n, program); err != nil {
		return fmt.Errorf("load SavedModel %s: %w", s.model.Dir, err)
	}
	return nil
}

// fill sets the variables in an empty session, and adds the program.
func (s *Session) fill(n *native, program *savedmodels.Program) (err error) {
	ctx, tf, own := context.Background(), n.tf, ownWeights(s.model)
	if s.model.ByKey {
		if n.state, err = addState(s.model, tf.Graph()); err != nil {
			return err
		}
		if err := restore(ctx, tf, own, n.state.prefix, n.state.writes...); err != nil {
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
	_, err = tf.Run(ctx, feeds, nil, tfbind.RunOptions{Targets: []string{program.Init}})
	return err
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
	return restore(ctx, tf, prefix, input, saver.RestoreOp)
}

// restore runs operations that read the files with a prefix, which it feeds to input.
func restore(ctx context.Context, tf *tfbind.Session, prefix string, input tfbind.Output, targets ...string) error {
	return withFiles(prefix, func(name *tfbind.Tensor) error {
		_, err := tf.Run(ctx, tfbind.Feeds{input: name}, nil, tfbind.RunOptions{Targets: targets, Proto: inCaller(tf)})
		return err
	})
}
