package main

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"steadyfit/data"
	"steadyfit/internal/tflibrary"
	"steadyfit/internal/tfprocess"
	"steadyfit/train"
)

func TestMain(m *testing.M) {
	train.Init(configureChild)
	// Long trainings that are interrupted start without --auto; auto.txtar tests the choice.
	if _, set := os.LookupEnv(autoEnv); !set {
		if err := os.Setenv(autoEnv, "off"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	asProgram()
	testscript.Main(m, map[string]func(){"steadyfit": main})
}

const autoEnv = envPrefix + "AUTO"

// TestScripts runs the command as users do: see testdata/script.
func TestScripts(t *testing.T) { testscript.Run(t, scriptParams(t, "testdata/script")) }

// scriptParams returns the parameters of the scripts in a folder.
func scriptParams(t *testing.T, dir string) testscript.Params {
	location, err := tflibrary.Locate("")
	if err != nil {
		t.Fatal(err)
	}
	models, err := filepath.Abs("../../savedmodels/testdata")
	if err != nil {
		t.Fatal(err)
	}
	return testscript.Params{
		Dir: dir,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, ".cache"))
			e.Setenv(tflibrary.EnvLibrary, location.Library)
			e.Setenv("MODELS", models)
			e.Setenv("PYTHON", filepath.Join(models, "../../.runtime/venv/bin/python"))
			e.Setenv("ADAPTER", filepath.Join(models, "../../session/testdata"))
			// The scripts pass with oneDNN on and off.
			if value, ok := os.LookupEnv("TF_ENABLE_ONEDNN_OPTS"); ok {
				e.Setenv("TF_ENABLE_ONEDNN_OPTS", value)
			}
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "race":
				return raceDetector(), nil
			case "gpu":
				_, err := os.Stat("/dev/nvidiactl")
				return err == nil, nil
			case tfprocess.Jemalloc:
				_, err := tfprocess.FindAllocator(name)
				return err == nil, nil
			}
			return false, fmt.Errorf("no condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitfor": waitFor,
			"corrupt": corrupt,
			"exits":   exits,
			"digits":  digits,
		},
		UpdateScripts: os.Getenv("STEADYFIT_UPDATE") != "",
	}
}

// raceDetector reports whether this program has the race detector.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-race" &&
			s.Value == "true"
	})
}

// waitFor PATTERN waits until a file that matches the pattern exists.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfor PATTERN")
	}
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := filepath.Glob(ts.MkAbs(args[0]))
		ts.Check(err)
		if len(found) > 0 {
			return
		}
		select {
		case <-deadline:
			ts.Fatalf("no %s after a minute", args[0])
		case <-tick.C:
		}
	}
}

// exits CODE PROGRAM [ARG...] runs a program that must exit with that code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG...]")
	}
	code := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if want := args[0]; strconv.Itoa(code) != want {
		ts.Fatalf("%v: exit code %d, want %s", args[1:], code, want)
	}
}

// writeNPY writes an array in the format of numpy.save.
func writeNPY(out io.Writer, a data.Array) error {
	w, err := data.NewWriter(out, ".npy", a.Shape[0])
	if err == nil {
		err = w.Write(data.Field{Name: "x", Array: a})
	}
	if err == nil {
		err = w.Flush()
	}
	return err
}

// digits DIR writes the training part of the built-in digits four times: as PNG images in class
// folders to DIR/images, as arrays to DIR/arrays (both with values from 0 to 255), as arrays with the
// original values and sample weights of 0 to DIR/weighted, and as TFRecord files to DIR/records.
func digits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: digits DIR")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(digitsRecords(filepath.Join(dir, "records")))
	write := func(path string, encode func(io.Writer) error) {
		path = filepath.Join(dir, path)
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o777))
		var file bytes.Buffer
		ts.Check(encode(&file))
		ts.Check(os.WriteFile(path, file.Bytes(), 0o666))
	}
	train, _, err := data.Builtin("digits")
	ts.Check(err)
	for b, err := range train.Batches(data.Pass{Batch: train.Len()}) {
		ts.Check(err)
		x, y := b.Fields[0].Values.([]uint8), b.Fields[1].Values.([]int64)
		bytes := make([]uint8, len(x))
		for i, v := range x {
			bytes[i] = uint8(min(int(v)*16, 255))
		}
		var written [10]int
		for i, class := range y {
			image := &image.Gray{Pix: bytes[64*i : 64*i+64], Stride: 8, Rect: image.Rect(0, 0, 8, 8)}
			write(fmt.Sprintf("images/%d/%04d.png", class, written[class]),
				func(w io.Writer) error { return png.Encode(w, image) })
			written[class]++
		}
		write("arrays/x.npy", func(w io.Writer) error {
			return writeNPY(w, data.Array{Shape: []int{len(y), 8, 8}, Values: bytes})
		})
		write("arrays/y.npy", func(w io.Writer) error { return writeNPY(w, b.Fields[1].Array) })
		for name, a := range map[string]data.Array{"x": {Shape: []int{len(y), 64}, Values: x}, "y": b.Fields[1].Array,
			"sample_weight": {Shape: []int{len(y)}, Values: make([]float32, len(y))}} {
			write("weighted/"+name+".npy", func(w io.Writer) error { return writeNPY(w, a) })
		}
	}
}

// corrupt PATTERN cuts the files that match the pattern in half.
func corrupt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: corrupt PATTERN")
	}
	found, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(found) == 0 {
		ts.Fatalf("no %s to corrupt", args[0])
	}
	for _, path := range found {
		info, err := os.Stat(path)
		ts.Check(err)
		ts.Check(os.Truncate(path, info.Size()/2))
	}
}
