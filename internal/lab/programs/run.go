// Package programs has the programs of the matrix on this project's own packages. Each does the work of a workload, in
// a process of its own. Some make mistakes on purpose, such as leaving tensors open, because their effect is measured.
// The folders beside it have the programs on Keras and on galeone's binding.
package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/program"
	"steadyfit/tfbind"
)

// ErrUnknown means that no program has the name.
var ErrUnknown = errors.New("unknown program")

var programs = map[string]func(context.Context, *run) *program.Loop{
	"W0":   newInMemory,
	"W1":   newW1,
	"W2":   newW2,
	"W3":   newW3,
	"W4":   newW4,
	"W5":   newW5,
	"W6":   newW6,
	"W8":   newW8,
	"W9":   newW9,
	"W10":  newW10,
	"W12":  newW12,
	"S0":   newS0,
	"S1":   newValidated,
	"S1d":  newValidated,
	"S2":   newInMemory,
	"S2l":  newInMemory,
	"S3":   newS3,
	"S4":   newS4,
	"user": newUser,
}

// Names returns the sorted names of the programs.
func Names() []string { return slices.Sorted(maps.Keys(programs)) }

// Open opens a program, for steps of it in another process. TensorFlow must be loaded.
func Open(ctx context.Context, name string, arguments ...string) (l *program.Loop, err error) {
	p, err := program.New(arguments, io.Discard)
	if err == nil {
		err = program.Caught(func() { l = programs[name](ctx, &run{p}) })
	}
	return l, err
}

// run is a run of a program.
type run struct{ *program.Program }

// Run runs a program with arguments of the form --name=value, and prints its result to out. lib is the location of
// TensorFlow, as in [tfbind.Load].
func Run(ctx context.Context, name string, arguments []string, lib string, out io.Writer) error {
	open, ok := programs[name]
	if !ok {
		return fmt.Errorf("%w %q; there are %s", ErrUnknown, name, strings.Join(Names(), ", "))
	}
	p, err := program.New(arguments, out)
	if err != nil {
		return err
	}
	info, err := tfbind.Load(lib)
	if err != nil {
		return err
	}
	p.Fact("tensorflow", info.Version)
	return p.Run(ctx, func(ctx context.Context) *program.Loop { return open(ctx, &run{p}) }, nil)
}

func (b *run) graph(g *graphdef.Graph) *tfbind.Session {
	def := program.Must(g.Bytes())
	graph := program.Must(tfbind.NewGraph())
	b.OnClose(graph.Close)
	program.Check(graph.Import(def, ""))
	s := program.Must(tfbind.NewSession(graph, b.Config))
	b.OnClose(s.Close)
	return s
}

func outputs(s *tfbind.Session, names ...string) []tfbind.Output {
	list := make([]tfbind.Output, len(names))
	for i, name := range names {
		list[i] = program.Must(s.Graph().Output(name))
	}
	return list
}
