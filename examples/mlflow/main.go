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
	"math"
	"net/http"
	"os"

	"steadyfit/fit"
	"steadyfit/train"
)

// mlflow records a training as a run of MLflow, with its REST API 2.0
// (mlflow.org/docs/latest/api_reference/rest-api.html).
type mlflow struct {
	server, experiment, run string
}

// Observe implements fit.Observer.
func (m *mlflow) Observe(ctx context.Context, o *fit.Observation) error {
	at := o.Time.UnixMilli()
	switch o.Moment {
	case fit.AtEpoch:
		return m.call(ctx, "runs/log-batch", map[string]any{"run_id": m.run, "metrics": metrics(o, at)}, nil)
	case fit.AtEnd:
		status := "FAILED"
		if o.Done {
			status = "FINISHED"
		}
		return m.call(ctx, "runs/update", map[string]any{"run_id": m.run, "status": status, "end_time": at}, nil)
	case fit.AtStart:
		if m.run != "" {
			return nil
		}
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
	return nil
}

// metrics returns the finite figures of an epoch, since JSON has no others. The names of a validation
// begin with "validation/".
func metrics(o *fit.Observation, at int64) (list []map[string]any) {
	for _, s := range o.Scalars() {
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

func main() {
	server := flag.String("server", "http://localhost:5000", "address of MLflow")
	experiment := flag.String("experiment", "0", "ID of the experiment")
	flag.Parse()
	_, err := train.Run(context.Background(), train.Config{
		Model: "builtin:digits", Data: train.Data{Path: "builtin:digits"}, Validation: "builtin:digits",
		Loop:      fit.Loop{Batch: 32, Epochs: 10},
		Observers: []fit.Observer{&mlflow{*server, *experiment, os.Getenv("MLFLOW_RUN_ID")}},
		Progress:  os.Stderr,
	})
	if err != nil {
		log.Print(err)
	}
	os.Exit(train.ExitCode(err))
}
