package train

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/savedmodels"
)

// A model whose training had numbers as labels has no numbers for names, in each command and format, unless the
// options list the classes.
func TestNamesForAModelTrainedOnNumbers(t *testing.T) {
	m := builtin(t, "dropout-200-512-256-1")
	m = recorded(t, m, Data{Path: table(t, 200, "0", "1", "1")})
	assert.True(t, m.Metadata.NumericLabels)
	names := Data{Path: table(t, 200, "yes", "no", "yes")}
	for _, signature := range []string{m.Roles.Train, m.Roles.Evaluate, m.Roles.Predict} {
		require.ErrorIs(t, refuses(t, m, signature, names,
			`line 2, column "label" (201): found "yes", expected a number, because the labels of the `+
				"training data are numbers"), data.ErrLabel)
	}
	names.Classes = []string{"yes", "no"}
	reads(t, m, m.Roles.Evaluate, names, "y", []int64{0, 1, 0})
	m = recorded(t, m, names)
	assert.False(t, m.Metadata.NumericLabels, "the record of the last training")
	assert.Equal(t, []string{"yes", "no"}, m.Metadata.ClassNames)
	names.Classes = []string{"a", "b", "c"}
	refuses(t, m, m.Roles.Evaluate, names, "Data.Classes a,b,c: the model has 2: yes, no")

	// Class folders have names, too.
	m = builtin(t, "digits")
	m = m.WithRecord(&savedmodels.DataRecord{NumericLabels: true})
	folder := photos(t)
	reads(t, m, m.Roles.Evaluate, Data{Path: folder, Height: 8, Width: 8}, "y", []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	require.NoError(t, os.Rename(filepath.Join(folder, "9"), filepath.Join(folder, "nine")))
	_, err := opened(t, m, Data{Path: folder, Height: 8, Width: 8})
	require.ErrorIs(t, err, data.ErrLabel)
	read(t, m, m.Roles.Predict, Data{Path: folder, Height: 8, Width: 8})
}

// The targets of a regression are numbers, and names of classes repeat.
func TestTextsThatAreNoClasses(t *testing.T) {
	m := builtin(t, "dropout-200-512-256-1")
	open := func(loss string, classes int, rows int) error {
		noted := *m.Metadata
		noted.Loss, noted.ClassNames = map[string]string{"y": loss}, nil
		noted.Labels = map[string]savedmodels.InputMetadata{"y": {DType: "float32", Classes: classes}}
		model := *m
		model.Metadata = &noted
		var labels []string
		for i := range rows {
			labels = append(labels, fmt.Sprintf("$%d.5", i/2*i))
		}
		_, err := OpenData(&model, m.Roles.Train, Data{Path: table(t, 200, labels...)}, "train", data.Pass{Batch: 2})
		return err
	}
	err := open("mean_squared_error", 0, 4)
	require.ErrorIs(t, err, data.ErrLabel)
	assert.ErrorContains(t, err, `line 2, column "label" (201): found "$0.5", expected a number, because the loss of the `+
		"model, mean_squared_error, takes numbers")
	err = open("sparse_categorical_crossentropy", 3, 20)
	require.ErrorIs(t, err, data.ErrLabel)
	assert.ErrorContains(t, err, `the labels of 20 rows have 19 different texts, such as "$0.5" in the first row, and names `+
		"of classes repeat")
	assert.NoError(t, open("binary_crossentropy", 0, 2))
}
