// Command mlflow trains the built-in model of handwritten digits and records the training in MLflow, with
// an observer of its own.
//
//	mlflow server --port 5000 &
//	go run ./examples/mlflow -server http://localhost:5000
//
// With the variable MLFLOW_RUN_ID it continues that run.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strconv"

	"steadyfit/fit"
	"steadyfit/train"
)

// mlflow records a training as a run of MLflow, with its REST API 2.0
// (mlflow.org/docs/latest/api_reference/rest-api.html).
type mlflow struct {
	server, experiment, run string
	params                  []param
}

type param struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Observe implements fit.Observer.
func (m *mlflow) Observe(ctx context.Context, o *fit.Observation) error {
	at := o.Time.UnixMilli()
	switch o.Moment {
	case fit.AtEpoch:
		return logBatch(ctx, m, "metrics", metrics(o, at))
	case fit.AtEnd:
		status := "FAILED"
		if o.Done {
			status = "FINISHED"
		}
		return m.call(ctx, "runs/update", map[string]any{"run_id": m.run, "status": status, "end_time": at}, nil)
	case fit.AtStart:
		if m.run == "" {
			if err := m.create(ctx, at); err != nil {
				return err
			}
		}
		return logBatch(ctx, m, "params", m.params)
	}
	return nil
}

// logBatch logs a list, unless it is empty: MLflow's server fails for null in place of a list.
func logBatch[T any](ctx context.Context, m *mlflow, name string, list []T) error {
	if len(list) == 0 {
		return nil
	}
	return m.call(ctx, "runs/log-batch", map[string]any{"run_id": m.run, name: list}, nil)
}

func (m *mlflow) create(ctx context.Context, at int64) error {
	var created struct {
		Run struct {
			Info struct {
				ID string `json:"run_id"`
			} `json:"info"`
		} `json:"run"`
	}
	err := m.call(ctx, "runs/create", map[string]any{"experiment_id": m.experiment, "start_time": at}, &created)
	m.run = created.Run.Info.ID
	return err
}

// metrics returns the finite figures of an epoch, since JSON has no others. The names of a validation
// begin with "validation/".
func metrics(o *fit.Observation, at int64) (list []map[string]any) {
	for _, s := range o.Record.Scalars() {
		name := s.Name
		if s.Run != "train" {
			name = s.Run + "/" + name
		}
		if !math.IsNaN(s.Value) && !math.IsInf(s.Value, 0) {
			list = append(list, map[string]any{"key": name, "value": s.Value, "timestamp": at, "step": s.Step})
		}
	}
	return list
}

func (m *mlflow) call(ctx context.Context, method string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.server+"/api/2.0/mlflow/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("MLflow: %s: %s: %s", method, response.Status, text)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	return err
}

// recorded returns a training that m records.
func recorded(m *mlflow) train.Config {
	c := train.Config{
		Model: "builtin:digits", Data: train.Data{Path: "builtin:digits"}, Validation: "builtin:digits",
		Loop:      fit.Loop{Batch: 32, Epochs: 10},
		Observers: []fit.Observer{m},
	}
	m.params = []param{
		{"model", c.Model}, {"data", c.Data.Path},
		{"batch", strconv.Itoa(c.Loop.Batch)}, {"epochs", strconv.Itoa(c.Loop.Epochs)},
	}
	return c
}

func main() {
	server := flag.String("server", "http://localhost:5000", "address of MLflow")
	experiment := flag.String("experiment", "0", "ID of the experiment")
	flag.Parse()
	c := recorded(&mlflow{server: *server, experiment: *experiment, run: os.Getenv("MLFLOW_RUN_ID")})
	c.Progress = os.Stderr
	// Errors of observers are warnings, since they do not end the training.
	c.Loop.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	_, err := train.Run(context.Background(), c)
	if err != nil {
		log.Print(err)
	}
	os.Exit(train.ExitCode(err))
}
