package contract

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMark(t *testing.T) {
	retry := errors.New("retry")
	err := Mark(&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, fmt.Errorf("another process: %w", retry))
	assert.EqualError(t, err, "open x: file does not exist")
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorIs(t, err, retry)
	assert.ErrorAs(t, err, new(*fs.PathError))
	assert.NotErrorIs(t, err, fs.ErrExist)
}
