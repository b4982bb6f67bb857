package main

import (
	"bytes"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/cluster"
	"steadyfit/fit"
	"steadyfit/train"
)

// pythonEnv names a Python that has mlflow.
const pythonEnv = "STEADYFIT_TEST_MLFLOW"

// readRuns prints the status, the parameters and the history of each metric of runs, as MLflow's client
// reads them.
const readRuns = `
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
runs = []
for name in sys.argv[2:]:
    run = client.get_run(name)
    points = {key: [[m.step, m.value] for m in client.get_metric_history(name, key)] for key in run.data.metrics}
    runs.append({"status": run.info.status, "ended": bool(run.info.end_time), "params": run.data.params, "metrics": points})
print(json.dumps(runs))
`

// MLflow's own client reads a training from MLflow's own server, with the figures of the history.
func TestMLflowServer(t *testing.T) {
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Skipf("no Python with mlflow: run `make mlflow`, or set %s", pythonEnv)
	}
	url := serve(t, python)
	m, failed := &mlflow{server: url, experiment: "0"}, &mlflow{server: url, experiment: "0"}
	for _, o := range []*fit.Observation{
		{Moment: fit.AtStart, Time: time.Now()},
		{Moment: fit.AtEpoch, Time: time.Now(), Record: &fit.Record{Epoch: 1,
			Metrics: fit.Metrics{{Name: "loss", Value: math.NaN()}}}},
		{Moment: fit.AtEnd, Time: time.Now()},
	} {
		require.NoError(t, failed.Observe(t.Context(), o))
	}
	// The server is warm now: a training waits at most 5 seconds for its observers when it ends.
	result, err := train.Run(t.Context(), recorded(m))
	require.NoError(t, err)

	type run struct {
		Status  string
		Ended   bool
		Params  map[string]string
		Metrics map[string][][2]float64
	}
	want := run{Status: "FINISHED", Ended: true, Metrics: map[string][][2]float64{},
		Params: map[string]string{"model": "builtin:digits", "data": "builtin:digits", "batch": "32", "epochs": "10"}}
	require.Len(t, result.History.Records, 10)
	for _, r := range result.History.Records {
		for _, s := range r.Scalars() {
			name := s.Name
			if s.Run != "train" {
				name = s.Run + "/" + name
			}
			want.Metrics[name] = append(want.Metrics[name], [2]float64{float64(s.Step), s.Value})
		}
	}
	require.Contains(t, want.Metrics, "epoch_loss")
	require.Contains(t, want.Metrics, "validation/epoch_accuracy")
	cmd := exec.Command(python, "-c", readRuns, url, m.run, failed.run)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	var got []run
	require.NoError(t, json.Unmarshal(out, &got))
	require.Len(t, got, 2)
	assert.Equal(t, want, got[0])
	assert.Equal(t, run{Status: "FAILED", Ended: true, Params: map[string]string{}, Metrics: map[string][][2]float64{}},
		got[1])
	t.Logf("MLflow's client reads %d parameters and %d metrics of 10 epochs", len(got[0].Params), len(got[0].Metrics))
}

// serve starts MLflow's server with a database in a temporary folder, and returns its address.
func serve(t *testing.T, python string) (url string) {
	t.Helper()
	addresses, err := cluster.FreeAddresses(1)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(addresses[0])
	require.NoError(t, err)
	dir := t.TempDir()
	var output bytes.Buffer
	cmd := exec.Command(python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port, "--workers", "1",
		"--backend-store-uri", "sqlite:///"+filepath.Join(dir, "mlflow.db"), "--default-artifact-root",
		filepath.Join(dir, "artifacts"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.Env = append(os.Environ(), "MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the server has workers
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM))
		_ = cmd.Wait() // the signal is an error
		if t.Failed() {
			t.Logf("the server: %s", &output)
		}
	})
	url = "http://127.0.0.1:" + port
	healthy := func() bool {
		response, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}
	require.Eventually(t, healthy, 2*time.Minute, 200*time.Millisecond)
	return url
}
