package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	shapepb "github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_shape_go_proto"
	types "github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"
)

func info(name string, dtype types.DataType, dims ...int64) *pb.TensorInfo {
	shape := &shapepb.TensorShapeProto{}
	for _, d := range dims {
		shape.Dim = append(shape.Dim, &shapepb.TensorShapeProto_Dim{Size: d})
	}
	return &pb.TensorInfo{Encoding: &pb.TensorInfo_Name{Name: name}, Dtype: dtype, TensorShape: shape}
}

func writeModel(t *testing.T, def *pb.SignatureDef) string {
	t.Helper()
	dir := t.TempDir()
	text, err := proto.Marshal(&pb.SavedModel{MetaGraphs: []*pb.MetaGraphDef{{SignatureDef: map[string]*pb.SignatureDef{"train": def}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "saved_model.pb"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReadSignature(t *testing.T) {
	dir := writeModel(t, &pb.SignatureDef{
		Inputs: map[string]*pb.TensorInfo{
			"y": info("train_y:0", types.DataType_DT_INT32, -1),
			"x": info("train_x:0", types.DataType_DT_FLOAT, -1, 8, 8),
		},
		Outputs: map[string]*pb.TensorInfo{
			"accuracy": info("call:0", types.DataType_DT_FLOAT),
			"loss":     info("call:1", types.DataType_DT_FLOAT),
		},
	})
	s, err := readSignature(dir, "train", 16, 10)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(config{model: "m"}.flags(s)[12:], " ")
	want := "-feed train_x:0=float:16x8x8:10 -feed train_y:0=int32:16:10 -fetch call:1 -fetch call:0"
	if got != want {
		t.Errorf("flags = %q, want %q", got, want)
	}
	if _, err := readSignature(dir, "learn", 16, 10); err == nil {
		t.Error("a missing signature gave no error")
	}
	if _, err := readSignature(t.TempDir(), "train", 16, 10); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing model gave %v", err)
	}
	for name, bad := range map[string]*pb.TensorInfo{
		"half":    info("x:0", types.DataType_DT_HALF, -1),
		"unknown": info("x:0", types.DataType_DT_FLOAT, -1, -1),
	} {
		dir := writeModel(t, &pb.SignatureDef{Inputs: map[string]*pb.TensorInfo{"x": bad}})
		if _, err := readSignature(dir, "train", 16, 10); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestParseLine(t *testing.T) {
	s, err := parseLine("BenchmarkStep/impl=c 5 1000 ns/op 7 peak-bytes")
	if err != nil || s.values["ns/op"] != 1000 || s.values["peak-bytes"] != 7 {
		t.Errorf("parseLine = %v, %v", s, err)
	}
	for _, line := range []string{"", "BenchmarkX 5", "BenchmarkX 5 x ns/op", "BenchmarkX 5 7 peak-bytes"} {
		if _, err := parseLine(line); err == nil {
			t.Errorf("parseLine(%q) gave no error", line)
		}
	}
}

func samples(ns ...float64) []sample {
	var all []sample
	for i, v := range ns {
		all = append(all, sample{repeat: i, values: map[string]float64{"ns/op": v, "first-loss": 0.5}})
	}
	return all
}

func TestRatiosArePaired(t *testing.T) {
	// Each turn is slower than the one before; within a turn the arm takes twice as long.
	ratio, interval := ratios(samples(200, 400, 800, 1600, 3200), samples(100, 200, 400, 800, 1600))
	if ratio != "2.000" || interval != "[2.000, 2.000]" {
		t.Errorf("ratio %s %s, want 2.000 [2.000, 2.000]", ratio, interval)
	}
	if ratio, _ := ratios(samples(90, 110, 95, 105, 100), samples(100, 100, 100, 100, 100)); !strings.HasSuffix(ratio, "~") {
		t.Errorf("ratio %s is not marked as undecided", ratio)
	}
	if low, high := bootstrap([]float64{math.Log(3)}); math.Abs(low-3) > 1e-12 || math.Abs(high-3) > 1e-12 {
		t.Errorf("interval of one pair = [%v, %v]", low, high)
	}
}

func TestSameWork(t *testing.T) {
	results := map[string][]sample{"c": samples(1), "other": samples(1)}
	if err := sameWork([]string{"c", "other"}, results); err != nil {
		t.Error(err)
	}
	results["other"][0].values["first-loss"] = 0.6
	if err := sameWork([]string{"c", "other"}, results); err == nil {
		t.Error("another loss was accepted")
	}
}

// TestRun compares two stand-ins for the steadyfit arm, and one that fails.
func TestRun(t *testing.T) {
	dir := writeModel(t, &pb.SignatureDef{
		Inputs:  map[string]*pb.TensorInfo{"x": info("x:0", types.DataType_DT_FLOAT, -1)},
		Outputs: map[string]*pb.TensorInfo{"loss": info("l:0", types.DataType_DT_FLOAT)},
	})
	out := filepath.Join(t.TempDir(), "sub", "lines.txt")
	var stdout, stderr bytes.Buffer
	args := []string{"-model", dir, "-arms", "steadyfit", "-repeats", "2", "-out", out, "-steadyfit"}
	if code := run(context.Background(), append(args, "echo BenchmarkStep/batch={batch} {steps} 1500 ns/op"), &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if !strings.Contains(stdout.String(), "1.5  [1.5, 1.5]") {
		t.Errorf("output:\n%s", stdout.String())
	}
	lines, err := os.ReadFile(out)
	if err != nil || strings.Count(string(lines), "BenchmarkStep/batch=32 1000 1500 ns/op") != 2 {
		t.Errorf("file: %v\n%s", err, lines)
	}
	for _, command := range []string{"false", "true", "no-such-command", "echo Benchmark 1"} {
		if code := run(context.Background(), append(args, command), &stdout, &stderr); code != 1 {
			t.Errorf("%q: exit code %d, want 1", command, code)
		}
	}
	if code := run(context.Background(), nil, &stdout, &stderr); code != 2 {
		t.Errorf("without a model: exit code %d, want 2", code)
	}
}
