package savedmodels

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/option"
)

const (
	withTags     = "testdata/constants/tags"
	withTraining = "testdata/constants/training"
)

// Tags choose one of several metagraphs, and the error names all tag sets.
func TestTags(t *testing.T) {
	m, err := Open(withTags)
	require.NoError(t, err)
	assert.Equal(t, []string{"serve"}, m.Tags)
	assert.Empty(t, m.Roles.Train)
	require.NotEmpty(t, m.Problems)
	assert.Equal(t, "choose another metagraph by its tags: train; serve", m.Problems[0].Fix)
	m, err = Open(withTags, "train")
	require.NoError(t, err)
	assert.Equal(t, []string{"train"}, m.Tags)
	assert.Equal(t, "train", m.Roles.Train)
	assert.Equal(t, []string{"train"}, m.Metadata.Tags)
	graph, err := m.Graph()
	require.NoError(t, err)
	assert.Contains(t, string(graph), "GradientDescent")

	_, err = Open(withTags, "train", "serve")
	var refused *option.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, "Config.Tags", refused.Option)
	assert.Equal(t, "train,serve", refused.Value)
	assert.Equal(t, "choose one of train; serve", refused.Fix)
}

// The order of tags does not matter. Without tags, the metagraph with the tag serve alone is preferred, and
// a model of several others needs tags.
func TestChooseMetaGraph(t *testing.T) {
	for _, c := range []struct {
		tags   [][]string
		wanted []string
		want   int
	}{
		{[][]string{{"serve", "tpu"}, {"serve"}}, nil, 1},
		{[][]string{{"train"}, {"serve", "tpu"}}, nil, 1},
		{[][]string{{"train"}}, nil, 0},
		{[][]string{{}}, nil, 0},
		{[][]string{{"train"}, {"eval"}}, nil, -1},
		{[][]string{{"train"}, {"serve", "gpu"}}, []string{"gpu", "serve"}, 1},
		{[][]string{{"train"}}, []string{"serve"}, -1},
	} {
		got, err := chooseMetaGraph(c.tags, c.wanted)
		assert.Equal(t, c.want >= 0, err == nil, "%v %v", c.tags, c.wanted)
		if err == nil {
			assert.Equal(t, c.want, got, "%v %v", c.tags, c.wanted)
		}
	}
}

// A constant holds for all signatures with the input, or for one. It is no data input.
func TestConstants(t *testing.T) {
	m, err := Open(withTraining)
	require.NoError(t, err)
	require.Len(t, m.find("train").DataInputs(), 3)
	set, err := m.WithConstants(map[string]float64{"training": 1, "evaluate.training": 0})
	require.NoError(t, err)
	assert.Equal(t, 1.0, *set.find("train").Input("training").Constant)
	assert.Equal(t, 0.0, *set.find("evaluate").Input("training").Constant)
	assert.Len(t, set.find("train").DataInputs(), 2)
	assert.Nil(t, m.find("train").Input("training").Constant, "the model is unchanged")
	set, err = set.WithConstants(map[string]float64{"predict.training": 0})
	require.NoError(t, err)
	assert.Equal(t, map[string]float64{"training": 1, "evaluate.training": 0, "predict.training": 0}, set.Constants())

	for key, c := range map[string]struct {
		value float64
		want  string
	}{
		"trainin":    {1, "no signature has such an input for the whole batch; there are training"},
		"x":          {1, "no signature has such an input"},
		"x.training": {1, "no signature has such an input"},
		"training":   {0.5, "takes bool"},
	} {
		_, err = m.WithConstants(map[string]float64{key: c.value})
		require.ErrorContains(t, err, c.want, key)
	}
	good, err := Open("testdata/good")
	require.NoError(t, err)
	_, err = good.WithConstants(map[string]float64{"training": 1})
	require.ErrorContains(t, err, "there are none")
}

// A model uses the tags and constants of its training.
func TestRecordedConstants(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(withTags)))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "assets.extra"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "assets.extra", "steadyfit.json"),
		[]byte(`{"tags":["train"],"constants":{"keep_prob":0.5}}`), 0o666))
	m, err := Open(dir)
	require.NoError(t, err)
	assert.Equal(t, "train", m.Roles.Train)
	assert.Equal(t, 0.5, *m.find("train").Input("keep_prob").Constant)
	m, err = Open(dir, "serve")
	require.NoError(t, err)
	assert.Equal(t, []string{"serve"}, m.Metadata.Tags)
}
