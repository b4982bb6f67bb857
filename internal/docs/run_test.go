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

// elsewhere has pages whose commands other tests run. scripts/leaks.py runs those of docs/leaks.
var elsewhere = map[string]string{
	"docs/how-to/go-module.md": "TestPage of internal/lab/bindings",
	"docs/how-to/matrix.md":    "tests of internal/lab",
}

// empty has pages that begin in an empty folder. Other pages find what they name: a model, data, a program.
var empty = map[string]bool{
	"README.md": true, "docs/tutorial/first-training.md": true, "docs/tutorial/from-keras.md": true,
	"docs/tutorial/growing-memory.md": true,
}

// given writes the files that pages name.
const given = `
mkdir -p my out
steadyfit fit --model builtin:digits --data builtin:digits --epochs 1 --out my/model
cp "$ROOT/data/builtin/digits-train.npz" train.npz
cp "$ROOT/data/builtin/digits-test.npz" test.npz
cat > train.py <<'END'
import keras
import numpy as np

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((8000, 8), "float32"), np.zeros((8000, 1), "float32"), batch_size=8, epochs=3, verbose=0)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.save("model.keras")
END
python train.py
`

// TestPagesRun runs the commands of each page in its order, in a folder of its own. A block that does not run says what it
// needs.
func TestPagesRun(t *testing.T) {
	if os.Getenv("STEADYFIT_TEST_PAGES") == "" {
		t.Skip("it takes minutes: set STEADYFIT_TEST_PAGES=1, as make test does")
	}
	dependOnSources(t)
	python, err := filepath.Abs(filepath.Join(root, ".runtime/venv/bin/python"))
	require.NoError(t, err)
	if _, err := os.Stat(python); err != nil {
		t.Skipf("no Python with TensorFlow at %s: run make venv", python)
	}
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	bin := t.TempDir()
	out, err := goBuild(t, filepath.Join(bin, "steadyfit"), "./cmd/steadyfit")
	require.NoError(t, err, out)
	for name, command := range map[string]string{"python": python, "steadyfit-export": python + " " + top + "/scripts/export.py",
		"steadyfit-import": python + " " + top + "/scripts/import.py"} {
		script := "#!/bin/sh\nexec " + command + ` "$@"` + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755))
	}
	bash := func(t *testing.T, folder, script string) {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "ROOT="+top, "TF_CPP_MIN_LOG_LEVEL=2",
			"KERAS_BACKEND=tensorflow", "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, out)
		require.NotContains(t, string(out), "here-document", script) // a block that ends too early
	}
	files := t.TempDir()
	bash(t, files, given)

	ran := 0
	for _, page := range documents(t) {
		script := Script(read(t, page))
		if elsewhere[page] != "" || strings.HasPrefix(page, "docs/leaks/") || script == "" {
			continue
		}
		ran++
		t.Run(page, func(t *testing.T) {
			folder := t.TempDir()
			if !empty[page] {
				require.NoError(t, os.CopyFS(folder, os.DirFS(files)))
			}
			bash(t, folder, script)
		})
	}
	require.Greater(t, ran, 10)
}

// A block of commands runs, or says what it needs. The comment is for this test: the text of the page says the same.
func TestScript(t *testing.T) {
	assert.Equal(t, "cat > a.py <<'END FILE'\nimport os\nEND FILE\nsteadyfit fit \\\n    --epochs 1\nls\nmake x\n", Script(`# Page

<!-- file: a.py -->
`+"```python\nimport os\n```"+`

    steadyfit fit \
        --epochs 1

    epoch 1: the output

<!-- needs: a GPU -->

    steadyfit doctor --gpu

`+"```\n$ ls\na.py\n```\n```sh\nmake x\n```\n"))
	assert.True(t, strings.HasPrefix(Script(read(t, "README.md")), "cat > train.py"))
}

// The first page is short.
func TestReadmeIsShort(t *testing.T) {
	assert.LessOrEqual(t, strings.Count(read(t, "README.md"), "\n"), 150, "lines of README.md")
}
