package mustcompile

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/tfproto"
	"steadyfit/savedmodels"
)

func builtin(t *testing.T, name string) *savedmodels.Model {
	t.Helper()
	m, err := savedmodels.Builtin(name)
	if !slices.Contains(savedmodels.BuiltinNames(), name) {
		t.Skipf("%v: make it with make models", err)
	}
	require.NoError(t, err)
	return m
}

// marked returns the functions with the attribute by name, each with the name of the function
// that calls it with the attribute.
func marked(t *testing.T, dir string) map[string]string {
	t.Helper()
	functions := make(map[string]string)
	for _, f := range library(t, dir) {
		for _, n := range f.GetNodeDef() {
			if n.Attr[Attribute].GetB() {
				functions[n.Attr["f"].GetFunc().GetName()] = f.GetSignature().GetName()
			}
		}
	}
	for name := range functions {
		f := library(t, dir)[name]
		require.NotNil(t, f)
		assert.True(t, f.Attr[Attribute].GetB(), name)
		assert.True(t, f.Attr["_noinline"].GetB(), "%s: else it is gone before XLA sees it", name)
	}
	return functions
}

func library(t *testing.T, dir string) map[string]*tfproto.FunctionDef {
	t.Helper()
	all := make(map[string]*tfproto.FunctionDef)
	for _, f := range graphOf(t, dir).GetLibrary().GetFunction() {
		all[f.GetSignature().GetName()] = f
	}
	return all
}

func graphOf(t *testing.T, dir string) *tfproto.GraphDef {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "saved_model.pb"))
	require.NoError(t, err)
	saved := &tfproto.SavedModel{}
	require.NoError(t, proto.Unmarshal(text, saved))
	require.Len(t, saved.MetaGraphs, 1)
	return saved.MetaGraphs[0].GraphDef
}

// wrapper returns the function that a signature of a model calls.
func wrapper(t *testing.T, model *savedmodels.Model, signature string) string {
	t.Helper()
	sig, err := model.Signature(signature)
	require.NoError(t, err)
	op, _, _ := strings.Cut(sig.Outputs[0].Op, ":")
	for _, n := range graphOf(t, model.Dir).GetNode() {
		if n.GetName() == op {
			return n.Attr["f"].GetFunc().GetName()
		}
	}
	require.Fail(t, "no operation "+op)
	return ""
}

func TestCopy(t *testing.T) {
	for _, name := range []string{"digits", "dense-100-64-1"} {
		t.Run(name, func(t *testing.T) {
			model := builtin(t, name)
			before, err := os.ReadFile(filepath.Join(model.Dir, "saved_model.pb"))
			require.NoError(t, err)
			dir := filepath.Join(t.TempDir(), "compiled")
			copied, err := Copy(model, dir)
			require.NoError(t, err)
			assert.Equal(t, dir, copied.Dir)
			assert.Equal(t, model.Roles, copied.Roles)
			err = copied.CheckTrainable(false)
			require.NoError(t, err)

			// The model already has functions for XLA; one more is new.
			added := marked(t, dir)
			for name := range marked(t, model.Dir) {
				assert.Contains(t, added, name)
				delete(added, name)
			}
			assert.Equal(t, []string{wrapper(t, model, model.Roles.Train)}, slices.Collect(maps.Values(added)))
			after, err := os.ReadFile(filepath.Join(model.Dir, "saved_model.pb"))
			require.NoError(t, err)
			assert.Equal(t, before, after)

			_, err = Copy(model, dir)
			require.ErrorIs(t, err, fs.ErrExist)
		})
	}
}

func TestASignatureThatCallsNothing(t *testing.T) {
	model := *builtin(t, "digits")
	model.Roles.Train = "nothing"
	_, err := Copy(&model, filepath.Join(t.TempDir(), "compiled"))
	require.ErrorIs(t, err, ErrNoFunction)
	require.ErrorContains(t, err, "signature nothing")
}
