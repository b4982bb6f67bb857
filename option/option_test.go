package option_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/option"
)

// flag converts option names to flags.
func flag(name, value string) string {
	_, field, _ := strings.Cut(name, ".")
	return strings.TrimSpace("--" + strings.ToLower(field) + " " + value)
}

func TestText(t *testing.T) {
	wrong := errors.New("wrong option")
	batch := &option.Error{Option: "Loop.Batch", Value: 0, Reason: "expected at least 1", Fix: "lower {Loop.Epochs}",
		Err: wrong}
	none := &option.Error{Option: "Loop.Resume", Reason: "there is no {Options.Precision float16} in {a file}"}
	for _, c := range []struct {
		err       error
		text, cli string
	}{
		{errors.New("Loop.Batch {Loop.Batch}"), "Loop.Batch {Loop.Batch}", "Loop.Batch {Loop.Batch}"},
		{batch, "Loop.Batch 0: expected at least 1; lower Loop.Epochs", "--batch 0: expected at least 1; lower --epochs"},
		{none, "Loop.Resume: there is no Options.Precision float16 in {a file}",
			"--resume: there is no --precision float16 in {a file}"},
		{fmt.Errorf("run: %w", batch), "run: Loop.Batch 0: expected at least 1; lower Loop.Epochs",
			"run: --batch 0: expected at least 1; lower --epochs"},
		{option.New("Loop.Again", "there is none", "run under {supervise.Run}"),
			"Loop.Again: there is none; run under supervise.Run", "--again: there is none; run under --run"},
		{errors.Join(batch, none), batch.Error() + "\n" + none.Error(),
			"--batch 0: expected at least 1; lower --epochs\n--resume: there is no --precision float16 in {a file}"},
		{option.Errorf("%s: raise {Loop.Epochs}: %w", "{Loop.Batch}.csv", batch), "{Loop.Batch}.csv: raise Loop.Epochs: " +
			batch.Error(), "{Loop.Batch}.csv: raise --epochs: --batch 0: expected at least 1; lower --epochs"},
	} {
		assert.EqualError(t, c.err, c.text)
		assert.Equal(t, c.cli, option.Text(c.err, flag))
	}
	assert.ErrorIs(t, option.Errorf("run: %w", batch), wrong)
}
