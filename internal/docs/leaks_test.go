package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The pages of docs/leaks are what scripts/leak_book.py makes from the programs and the stored results, and each
// program has a page.
func TestLeakBook(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not on the PATH")
	}
	for _, source := range []string{"scripts/leak_book.py", "docs/results/leaks.json.gz", "internal/lab/programs/leaks/truth.json"} {
		read(t, source) // go test repeats the test when a file changes that it opened
	}
	made := t.TempDir()
	cmd := exec.CommandContext(t.Context(), python, "scripts/leak_book.py", "--pages", made)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))

	pages := []string{"README.md"}
	programs, err := filepath.Glob(filepath.Join(root, "internal/lab/programs/leaks/*.py"))
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	for _, program := range programs {
		_, err := os.ReadFile(program)
		require.NoError(t, err)
		pages = append(pages, strings.TrimSuffix(filepath.Base(program), ".py")+".md")
	}
	stored, err := filepath.Glob(filepath.Join(root, "docs/leaks/*"))
	require.NoError(t, err)
	assert.Len(t, stored, len(pages), "docs/leaks has a page without a program")
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(made, page))
		require.NoError(t, err)
		if string(text) != read(t, filepath.Join("docs/leaks", page)) {
			t.Errorf("docs/leaks/%s is out of date: run python3 scripts/leak_book.py", page)
		}
	}
}
