package tfbind_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"steadyfit/internal/tfprocess"
	"steadyfit/tfbind"
)

// envServerChild is set in the child process of TestServerRuns. It names the file for the result.
const envServerChild = "STEADYFIT_TEST_SERVER"

// serverRuns has the measurements of a process with a server.
type serverRuns struct {
	Version         string
	Numbers, Aborts uint64 // calls of the functions of replace.c while failedRuns runs failed
	Kept            int64  // increase of malloc's memory in use, in bytes, over these runs
}

const failedRuns = 2000

// serverChild runs a graph on a server, whose runs fail. The end of a failed run aborts its
// transfers.
func serverChild(file string) error {
	info, err := tfbind.Load("")
	if err != nil {
		return err
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := port.Close(); err != nil {
		return err
	}
	text := func(b []byte, field protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
	}
	// A tensorflow.ServerDef: cluster (1), job_name (2) and protocol (5).
	task := string(text(nil, 2, port.Addr().String()))
	def := text(nil, 1, string(text(nil, 1, string(text(text(nil, 1, "worker"), 2, task)))))
	server, err := tfprocess.StartServer(text(text(def, 2, "worker"), 5, "grpc"))
	if err != nil {
		return err
	}
	s, err := tfbind.LoadSavedModel("../savedmodels/testdata/flat", []string{"serve"}, nil, server)
	if err != nil {
		return err
	}
	defer s.Close()
	graph, err := new(graphDef).placeholder("checked/x", tfbind.Float32).add("checked/y", "CheckNumerics",
		map[string]*attr{"T": typeAttr(tfbind.Float32), "message": textAttr("refused")}, "checked/x").marshal()
	if err != nil {
		return err
	}
	if err := s.Graph().Import(graph, ""); err != nil {
		return err
	}
	x, errX := s.Graph().Output("checked/x")
	y, errY := s.Graph().Output("checked/y")
	if err := errors.Join(errX, errY); err != nil {
		return err
	}
	step, err := s.Prepare([]tfbind.Output{x}, []tfbind.Output{y})
	if err != nil {
		return err
	}
	defer step.Close()
	run := func(value float64, n int) error {
		if err := step.Set(0, []float32{float32(value)}, 1); err != nil {
			return err
		}
		for range n {
			if err := step.Run(context.Background()); (err != nil) != math.IsNaN(value) {
				return fmt.Errorf("run with %v: %w", value, err)
			}
		}
		return nil
	}
	if err := errors.Join(run(1, 100), run(math.NaN(), 200)); err != nil {
		return err
	}
	r := serverRuns{Version: info.Version}
	numbers, aborts := tfbind.Replaced()
	before, _ := tfbind.MallocInfo()
	if err := run(math.NaN(), failedRuns); err != nil {
		return err
	}
	after, _ := tfbind.MallocInfo()
	r.Numbers, r.Aborts = tfbind.Replaced()
	r.Numbers, r.Aborts, r.Kept = r.Numbers-numbers, r.Aborts-aborts, after.InUse-before.InUse
	out, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, out, 0o644)
}

// TestServerRuns tests that TensorFlow numbers the runs on a server with numbers that do not
// repeat, and that it frees what an aborted run used.
func TestServerRuns(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux lets an executable replace functions of a library")
	}
	file := filepath.Join(t.TempDir(), "runs.json")
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), envServerChild+"="+file, "TF_CPP_MIN_LOG_LEVEL=3")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var r serverRuns
	require.NoError(t, json.Unmarshal(text, &r))
	t.Logf("%+v", r)
	if !strings.HasPrefix(r.Version, "2.21.") {
		t.Skipf("TensorFlow %s has other names for the functions", r.Version)
	}
	assert.GreaterOrEqual(t, r.Numbers, uint64(failedRuns))
	assert.GreaterOrEqual(t, r.Aborts, uint64(failedRuns))
	assert.Less(t, r.Kept, int64(100*failedRuns), "without the function of replace.c, TensorFlow keeps 800 bytes of each")
}
