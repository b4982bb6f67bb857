package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

// programEnv makes the test binary run the program.
const programEnv = "STEADYFIT_TEST_EXAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestTrain(t *testing.T) {
	info, err := tfbind.Load("")
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), programEnv+"=1", "STEADYFIT_TENSORFLOW="+filepath.Dir(info.Library))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "epoch 20/20")
	assert.FileExists(t, filepath.Join(cmd.Dir, "out/digits/saved_model.pb"))
}
