package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
)

func TestMLflow(t *testing.T) {
	var calls []string
	var bodies []map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&body))
		calls, bodies = append(calls, r.Method+" "+r.URL.Path), append(bodies, body)
		if len(calls) == 5 {
			http.Error(w, `{"error_code": "INTERNAL_ERROR"}`, http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(`{"run": {"info": {"run_id": "abc"}}}`))
	}))
	defer server.Close()
	m := &mlflow{server: server.URL, experiment: "7", params: []param{{"batch", "32"}}}
	at := time.UnixMilli(1_700_000_000_123)
	record := &fit.Record{Epoch: 2, Step: 20, Metrics: fit.Metrics{{Name: "loss", Value: 0.5},
		{Name: "val_loss", Value: 0.25}}}
	for _, o := range []*fit.Observation{
		{Moment: fit.AtStart, Time: at}, {Moment: fit.AtStep, Time: at}, {Moment: fit.AtEpoch, Time: at, Record: record},
		{Moment: fit.AtEnd, Time: at, Done: true},
	} {
		require.NoError(t, m.Observe(t.Context(), o))
	}
	const api = "POST /api/2.0/mlflow/runs/"
	assert.Equal(t, []string{api + "create", api + "log-batch", api + "log-batch", api + "update"}, calls)
	const ms = 1_700_000_000_123.
	assert.Equal(t, []map[string]any{
		{"experiment_id": "7", "start_time": ms},
		{"run_id": "abc", "params": []any{map[string]any{"key": "batch", "value": "32"}}},
		{"run_id": "abc", "metrics": []any{
			map[string]any{"key": "epoch_loss", "value": 0.5, "timestamp": ms, "step": 1.},
			map[string]any{"key": "validation/epoch_loss", "value": 0.25, "timestamp": ms, "step": 1.},
			map[string]any{"key": "validation/evaluation_loss_vs_iterations", "value": 0.25, "timestamp": ms, "step": 20.},
		}},
		{"run_id": "abc", "status": "FINISHED", "end_time": ms},
	}, bodies)
	assert.ErrorContains(t, m.Observe(t.Context(), &fit.Observation{Moment: fit.AtEnd, Time: at}), "INTERNAL_ERROR")
	assert.Equal(t, "FAILED", bodies[4]["status"])
}
