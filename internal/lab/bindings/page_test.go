package bindings

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPage follows docs/how-to/go-module.md in an empty folder beside the checkout.
func TestPage(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/how-to/go-module.md"))
	require.NoError(t, err)
	program := regexp.MustCompile("(?s)\n```go\n(.*?)```\n").FindSubmatch(page)
	require.NotNil(t, program)
	text := regexp.MustCompile("(?s)\n```.*?\n```\n").ReplaceAll(page, nil)
	script := []string{"set -eu"}
	for _, line := range regexp.MustCompile(`(?m)^    (.*)$`).FindAllSubmatch(text, -1) {
		script = append(script, string(line[1]))
	}

	parent := t.TempDir()
	require.NoError(t, os.Symlink(root, filepath.Join(parent, "steadyfit")))
	folder := filepath.Join(parent, "digits")
	require.NoError(t, os.Mkdir(folder, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "main.go"), program[1], 0o644))
	t.Chdir(folder)
	out := command(t, nil, "bash", "-c", strings.Join(script, "\n"))
	require.Contains(t, out, "epoch 10/10 ")
	require.True(t, strings.HasSuffix(out, "\nthe image shows a 7\n"), out)
	require.FileExists(t, filepath.Join(folder, "out/digits/saved_model.pb"))
}
