package tfbind_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/tflibrary"
	"steadyfit/tfbind"
)

// TestOpenInChild runs in the child processes of the other tests, because a process can open
// only one TensorFlow.
func TestOpenInChild(t *testing.T) {
	if os.Getenv("STEADYFIT_TEST_CHILD") == "" {
		t.Log("runs in the children of TestLoadErrors only")
		return
	}
}

// openInChild runs this test binary with another TensorFlow and returns TestMain's message.
func openInChild(t *testing.T, env ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOpenInChild$")
	cmd.Dir = t.TempDir()
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, tflibrary.EnvLibrary+"=") && !strings.HasPrefix(kv, "VIRTUAL_ENV=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "STEADYFIT_TEST_CHILD=1")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

// stub compiles a library that has all functions of the C API, of which only the one for the
// version works.
func stub(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	require.NoError(t, err)
	source := write(t, filepath.Join(dir, "stub.c"), `#include "tfapi.h"
#define TF_Version TF_Version_
#define STUB(result, name, params) void name(void) {}
SF_FUNCTIONS(STUB)
#undef TF_Version
const char* TF_Version(void) { return "`+version+`"; }
`)
	for _, name := range []string{"libtensorflow_cc.so.2", "libtensorflow_framework.so.2"} {
		out, err := exec.Command("cc", "-shared", "-fPIC", "-I", here, "-o", filepath.Join(dir, name),
			source).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return dir
}

//lane:skip check (long)
func TestLoadErrors(t *testing.T) {
	real, err := tfbind.Load("")
	require.NoError(t, err)
	empty := t.TempDir()
	half := t.TempDir()
	write(t, filepath.Join(half, "libtensorflow_cc.so.2"), "")
	junk := t.TempDir()
	write(t, filepath.Join(junk, "libtensorflow_cc.so.2"), "this is no library")
	write(t, filepath.Join(junk, "libtensorflow_framework.so.2"), "this is no library")
	other, large := t.TempDir(), t.TempDir() // libraries other than TensorFlow
	for dir, code := range map[string]string{other: "int nothing;", large: "char nothing[1L << 47];"} {
		for _, name := range []string{"libtensorflow_cc.so.2", "libtensorflow_framework.so.2"} {
			source := write(t, filepath.Join(dir, "other.c"), code)
			out, err := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(dir, name), source).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}

	for _, c := range []struct {
		name string
		path string
		want []string
	}{
		{"missing", filepath.Join(empty, "gone"), []string{"does not exist", "fix: "}},
		{"no library in the folder", empty, []string{"holds no libtensorflow_cc.so.2", "fix: "}},
		{"incomplete", half, []string{"incomplete installation", "libtensorflow_framework.so.2 is not beside it", half}},
		{"no library file", junk, []string{"cannot be opened", "file too short", "fix: "}},
		{"larger than the address space", large, []string{"cannot be opened", "fits into its memory"}},
		{"another library", other, []string{"cannot be opened", "has no function TF_Version"}},
		{"too old", stub(t, "2.9.1"), []string{"TensorFlow 2.9.1; supported are " + tflibrary.MinVersion + " to " +
			tflibrary.MaxVersion}},
		{"too new", stub(t, "3.0.0"), []string{"TensorFlow 3.0.0; supported are"}},
		{"no version", stub(t, "unknown"), []string{"TensorFlow unknown; supported are"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := openInChild(t, tflibrary.EnvLibrary+"="+c.path)
			require.Error(t, err)
			for _, want := range append(c.want, "no usable TensorFlow library") {
				if want == "file too short" && strings.Contains(out, "invalid ELF header") {
					continue // the dynamic loader has another message
				}
				assert.Contains(t, out, want)
			}
		})
	}
	t.Run("nothing anywhere", func(t *testing.T) {
		bin := t.TempDir() // a PATH without python3
		out, err := openInChild(t, "PATH="+bin, "LD_LIBRARY_PATH=")
		require.Error(t, err)
		for _, want := range []string{"project .runtime: no folder", "virtual environment: none is active", "python3: no python3 on the PATH", "system library path: no libtensorflow", "environment of the program: no python3 beside the program", "fix: run `pip install tensorflow-cpu`"} {
			assert.Contains(t, out, want)
		}
	})
	t.Run("found by its folder, its file, or an active virtual environment", func(t *testing.T) {
		site := filepath.Join(t.TempDir(), "lib", "python3.11", "site-packages")
		require.NoError(t, os.MkdirAll(site, 0o755))
		require.NoError(t, os.Symlink(filepath.Dir(real.Library), filepath.Join(site, "tensorflow")))
		for _, env := range []string{
			tflibrary.EnvLibrary + "=" + real.Library,
			tflibrary.EnvLibrary + "=" + filepath.Dir(real.Library),
			tflibrary.EnvLibrary + "=" + site,
			"VIRTUAL_ENV=" + filepath.Dir(filepath.Dir(filepath.Dir(site))),
		} {
			out, err := openInChild(t, env)
			assert.NoError(t, err, "%s: %s", env, out)
		}
	})
}

func TestLoadDecidesOnce(t *testing.T) {
	first, err := tfbind.Load("")
	require.NoError(t, err)
	assert.Regexp(t, `^\d+\.\d+\.\d+`, first.Version)
	again, err := tfbind.Load(filepath.Dir(first.Library))
	require.NoError(t, err)
	assert.Equal(t, first.Library, again.Library)
	_, err = tfbind.Load(stub(t, "2.21.0"))
	assert.ErrorIs(t, err, tfbind.ErrNoTensorFlow)
	assert.ErrorContains(t, err, "already loaded "+first.Library)
}
