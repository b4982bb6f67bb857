package savedmodels

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/bundle"
	"steadyfit/internal/manifest"
)

// The frozen variables of a model with LoRA are the variables of its base model. The adapter has
// the LoRA matrices and the head.
func TestFrozenVariables(t *testing.T) {
	m, err := Open("../session/testdata/digits-lora")
	require.NoError(t, err)
	var frozen, weights []string
	for _, v := range m.Variables {
		assert.NotEmpty(t, v.Key, v.Name)
		if v.Frozen {
			frozen = append(frozen, v.WeightName())
		}
		if v.Weight {
			weights = append(weights, v.WeightName())
		}
	}
	assert.ElementsMatch(t, []string{"model/hidden/kernel", "model/hidden/kernel_scale", "model/hidden/bias"}, frozen)
	assert.ElementsMatch(t, []string{"model/hidden/lora_kernel_a", "model/hidden/lora_kernel_b", "model/head/kernel",
		"model/head/bias"}, weights)
	var text strings.Builder
	require.NoError(t, m.WriteText(&text))
	assert.Contains(t, text.String(), "leave out 3 frozen variables")
	assert.Contains(t, text.String(), "An adapter holds 4 variables")
}

// Model.Base depends on the values of the frozen variables, but not on the folder of the model.
func TestBase(t *testing.T) {
	m, err := Open("../session/testdata/digits-lora")
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, os.DirFS(m.Dir)))
	same, err := Open(dir)
	require.NoError(t, err)
	assert.Len(t, m.Base, 64)
	assert.Equal(t, m.Base, same.Base)
	other, err := bundle.Read("../session/testdata/other/variables")
	require.NoError(t, err)
	assert.Len(t, bundle.Sum(other, m.frozen()), 64)
	assert.NotEqual(t, m.Base, bundle.Sum(other, m.frozen()))
	foreign, err := bundle.Read("testdata/good/variables/variables")
	require.NoError(t, err)
	assert.Empty(t, bundle.Sum(foreign, m.frozen()))
	assert.Empty(t, open(t, "good").Base, "its signatures change all variables")
	assert.NotEmpty(t, open(t, "keras").Base, "no signature sets its learning rate")
	for _, name := range BuiltinNames() {
		m, err := Builtin(name)
		require.NoError(t, err)
		assert.Empty(t, m.Base, name)
	}
}

func TestWeightName(t *testing.T) {
	for key, want := range map[string]string{
		"model/a.Sb/.ATTRIBUTES/VARIABLE_VALUE":   "model/a/b",
		"model/a...Sb/.ATTRIBUTES/VARIABLE_VALUE": "model/a./b",
		"dense/kernel": "dense/kernel",
	} {
		assert.Equal(t, want, Variable{Key: key}.WeightName())
	}
}

// The state of a random generator is not frozen, although no operation assigns it.
func TestGeneratorStateIsNotFrozen(t *testing.T) {
	f := facts{read: set{}, written: set{}, tested: set{}, updated: set{}, passed: set{}}
	for i, op := range []string{"ReadVariableOp", "ResourceGather", "VariableShape", "VarIsInitializedOp",
		"RngReadAndSkip", "StatefulStandardNormalV2", "ResourceApplyAdam"} {
		f.use(op, 0, i)
	}
	assert.Equal(t, set{4: true, 5: true, 6: true}, f.passed)
	m := &Model{known: knowledge{signature: map[string]facts{"train": f}}}
	for id := range 7 {
		v := Variable{Saved: true, Restored: true}
		m.markFrozen(&v, id)
		assert.Equal(t, id < 2, v.Frozen, "variable %d; nothing reads 2 and 3", id)
	}
}

// Writing a DataRecord changes nothing else in the exporter's notes. If there were no notes, the
// new notes contain only the record.
func TestRecord(t *testing.T) {
	m, err := Open("../session/testdata/digits-lora")
	require.NoError(t, err)
	require.NotNil(t, m.Metadata)
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, os.DirFS(m.Dir)))
	record := DataRecord{ClassNames: []string{"no", "yes"}, Columns: map[string][]string{"x": {"a<b", "c"}}, Ignored: []string{"id"},
		Scale: &[2]float64{0, 1}}
	require.NoError(t, manifest.RecordNotes(dir, record))
	same, err := Open(dir)
	require.NoError(t, err)
	assert.Equal(t, record, same.Metadata.DataRecord)
	assert.Equal(t, m.WithRecord(&record).Metadata, same.Metadata)
	record.Ignored = []string{}
	require.NoError(t, manifest.RecordNotes(dir, record))
	same, err = Open(dir)
	require.NoError(t, err)
	assert.Empty(t, same.Metadata.Ignored)

	require.NoError(t, os.RemoveAll(filepath.Join(dir, "assets.extra")))
	require.NoError(t, manifest.RecordNotes(dir, record))
	same, err = Open(dir)
	require.NoError(t, err)
	assert.Equal(t, &Metadata{DataRecord: record}, same.Metadata)

	path := filepath.Join(dir, "assets.extra", "steadyfit.json")
	require.NoError(t, os.WriteFile(path, make([]byte, manifest.MaxNotes+1), 0o666))
	require.NoError(t, manifest.RecordNotes(dir, record), "a training has ended, and its model must be saved")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o666))
	require.NoError(t, manifest.RecordNotes(dir, record))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "{", string(text), "notes that cannot be read stay")
}
