package observe

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/fit"
)

// trainer is a server that answers like the controller of Kubeflow Trainer.
type trainer struct {
	*httptest.Server
	bodies  []map[string]any
	tokens  []string
	answers func(w http.ResponseWriter, r *http.Request)
}

func newTrainer(t *testing.T) (*trainer, *Kubeflow) {
	s := &trainer{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.answers != nil {
			s.answers(w, r)
			return
		}
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		s.bodies, s.tokens = append(s.bodies, body), append(s.tokens, r.Header.Get("Authorization"))
		_ = json.NewEncoder(w).Encode(body)
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o666))
	require.NoError(t, os.WriteFile(token, []byte("first\n"), 0o666))
	environment := map[string]string{
		"KUBEFLOW_TRAINER_SERVER_URL":     s.URL + "/apis/trainer.kubeflow.org/v1alpha1/namespaces/n/trainjobs/j/status",
		"KUBEFLOW_TRAINER_SERVER_CA_CERT": ca, "KUBEFLOW_TRAINER_SERVER_TOKEN": token,
	}
	k := KubeflowFromEnvironment(func(name string) (string, bool) { v, ok := environment[name]; return v, ok })
	require.NotNil(t, k)
	return s, k
}

func later(seconds int, o fit.Observation) *fit.Observation {
	o.Time, o.Epochs, o.StepsPerEpoch = at.Add(time.Duration(seconds)*time.Second), 4, 10
	return &o
}

func TestKubeflow(t *testing.T) {
	s, k := newTrainer(t)
	rate := 0.5
	of := func(seconds int, steps int64) *fit.Observation {
		return later(seconds, fit.Observation{Moment: fit.AtStep, Step: steps, Steps: steps, EpochsDone: int(steps / 10), Metrics: fit.Metrics{{Name: "loss", Value: 0.125}}, LearningRate: &rate})
	}
	observe(t, k, later(0, fit.Observation{Moment: fit.AtStart}), of(1, 1), of(4, 4))
	require.Len(t, s.bodies, 1, "at most every 5 seconds")
	require.NoError(t, os.WriteFile(k.Token, []byte("second"), 0o666))
	observe(t, k, of(5, 5), of(9, 9), of(30, 30), later(31, fit.Observation{Moment: fit.AtEnd, Step: 40, Steps: 40, EpochsDone: 4, Done: true}))
	require.Equal(t, []string{"Bearer first", "Bearer second", "Bearer second", "Bearer second"}, s.tokens)
	require.Equal(t, map[string]any{"trainerStatus": map[string]any{
		"progressPercentage": 75., "estimatedRemainingSeconds": 10., "lastUpdatedTime": "2023-11-14T22:13:50Z",
		"metrics": []any{
			map[string]any{"name": "loss", "value": "0.125"}, map[string]any{"name": "learning_rate", "value": "0.5"},
			map[string]any{"name": "current_step", "value": "30"}, map[string]any{"name": "total_steps", "value": "40"},
			map[string]any{"name": "current_epoch", "value": "4"}, map[string]any{"name": "total_epochs", "value": "4"},
		},
	}}, s.bodies[2])
	status := func(i int) map[string]any { return s.bodies[i]["trainerStatus"].(map[string]any) }
	require.Equal(t, 0., status(0)["progressPercentage"])
	require.NotContains(t, status(0), "estimatedRemainingSeconds")
	require.Equal(t, 100., status(3)["progressPercentage"])
	require.Equal(t, 0., status(3)["estimatedRemainingSeconds"])
	require.Contains(t, status(3)["metrics"], map[string]any{"name": "loss", "value": "0.125"}, "the last known value")
}

// A training that ends early is not reported as complete, and a resumed training begins with the
// progress that it had.
func TestKubeflowProgress(t *testing.T) {
	s, k := newTrainer(t)
	observe(t, k, later(0, fit.Observation{Moment: fit.AtStart, Step: 20, Resumed: true}), later(3, fit.Observation{Moment: fit.AtEnd, Step: 40, Steps: 20}))
	require.Equal(t, 50., s.bodies[0]["trainerStatus"].(map[string]any)["progressPercentage"])
	require.Equal(t, 99., s.bodies[1]["trainerStatus"].(map[string]any)["progressPercentage"])
}

func TestKubeflowServerFails(t *testing.T) {
	s, k := newTrainer(t)
	s.answers = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "overloaded", http.StatusInternalServerError)
	}
	require.ErrorContains(t, k.Observe(t.Context(), later(0, fit.Observation{Moment: fit.AtStart})), "500 Internal Server Error: overloaded")
	s.answers = nil
	observe(t, k, later(1, fit.Observation{Moment: fit.AtStep}))
	require.Empty(t, s.bodies, "a failed report is not repeated at once")
	observe(t, k, later(5, fit.Observation{Moment: fit.AtStep}))
	require.Len(t, s.bodies, 1)

	// If the server does not answer, Observe returns when the context ends.
	ctx, cancel := context.WithCancel(t.Context())
	s.answers = func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the end of the connection is noticed after the body
		cancel()
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // the client still reads an answer while it closes the connection
	}
	require.ErrorIs(t, k.Observe(ctx, later(10, fit.Observation{Moment: fit.AtStep})), context.Canceled)
	s.CloseClientConnections()
	s.Close()
	require.ErrorContains(t, k.Observe(t.Context(), later(15, fit.Observation{Moment: fit.AtEnd})), "connection refused")
}

func TestKubeflowFiles(t *testing.T) {
	_, k := newTrainer(t)
	token := k.Token
	k.Token = filepath.Join(t.TempDir(), "none")
	require.ErrorContains(t, k.Observe(t.Context(), later(0, fit.Observation{Moment: fit.AtStart})), "the token")
	k.Token, k.CACert = token, token
	require.ErrorContains(t, k.Observe(t.Context(), later(0, fit.Observation{Moment: fit.AtStart})), "no certificate in PEM format")
	require.Nil(t, KubeflowFromEnvironment(func(string) (string, bool) { return "", false }))
}
