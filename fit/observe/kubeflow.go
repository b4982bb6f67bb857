package observe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/fit"
)

// Kubeflow reports the progress of a TrainJob to Kubeflow Trainer, which shows it in the field
// status.trainerStatus. It posts at most every 5 seconds, and at the end. If the server is not
// available, a later observation is posted.
//
// The protocol is that of KEP-2779 of kubeflow/trainer (docs/proposals/2779-trainjob-progress) and of
// docs/user-guides/trainjob-progress.md there, version 2.2, with the feature gate TrainJobStatus. The
// callback KubeflowCallback of Hugging Face transformers (src/transformers/integrations) reports the same.
type Kubeflow struct {
	// URL is the address of the status of the TrainJob.
	URL string
	// CACert is a file with the certificate of the server's authority; empty means the authorities of
	// the system. Token is a file with a token, which is read for each request, since Kubernetes rotates
	// it.
	CACert, Token string

	client *http.Client
	// began is the observation AtStart. posted is the time of the last report.
	began   *fit.Observation
	posted  time.Time
	metrics map[string]float64
}

const (
	kubeflowEvery   = 5 * time.Second
	kubeflowTimeout = 5 * time.Second
)

// KubeflowFromEnvironment returns the observer that the environment of a TrainJob describes; nil
// outside of a TrainJob. lookup is os.LookupEnv.
func KubeflowFromEnvironment(lookup func(string) (string, bool)) *Kubeflow {
	value := func(name string) string {
		v, _ := lookup("KUBEFLOW_TRAINER_SERVER_" + name)
		return v
	}
	if value("URL") == "" {
		return nil
	}
	return &Kubeflow{URL: value("URL"), CACert: value("CA_CERT"), Token: value("TOKEN")}
}

// The body of a request (KEP-2779, "Control plane endpoint").
type (
	trainJobStatus struct {
		Trainer trainerStatus `json:"trainerStatus"`
	}
	trainerStatus struct {
		Progress  int32            `json:"progressPercentage"`
		Remaining *int32           `json:"estimatedRemainingSeconds,omitempty"`
		Metrics   []kubeflowMetric `json:"metrics,omitempty"`
		Updated   time.Time        `json:"lastUpdatedTime"`
	}
	kubeflowMetric struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// Observe implements fit.Observer.
func (k *Kubeflow) Observe(ctx context.Context, o *fit.Observation) error {
	if o.Moment == fit.AtStart {
		k.began, k.posted, k.metrics, k.client = o, time.Time{}, map[string]float64{}, nil
	}
	for _, m := range o.Metrics {
		k.metrics[m.Name] = m.Value
	}
	if o.Moment != fit.AtEnd && o.Time.Sub(k.posted) < kubeflowEvery {
		return nil
	}
	k.posted = o.Time
	err := k.post(ctx, k.status(o))
	if o.Moment == fit.AtEnd && k.client != nil {
		k.client.CloseIdleConnections()
	}
	if err != nil {
		return fmt.Errorf("the progress was not reported to Kubeflow Trainer: %w", err)
	}
	return nil
}

func (k *Kubeflow) status(o *fit.Observation) trainJobStatus {
	all := int64(o.Epochs) * int64(o.StepsPerEpoch)
	s := trainerStatus{Updated: o.Time.UTC().Truncate(time.Second), Progress: 100}
	if !o.Done {
		s.Progress = int32(min(100*o.Step/max(all, 1), 99))
	}
	if o.Done {
		s.Remaining = new(int32)
	} else if o.Steps > 0 {
		left := o.Time.Sub(k.began.Time).Seconds() / float64(o.Steps) * float64(max(all-o.Step, 0))
		seconds := int32(min(left, 1<<30))
		s.Remaining = &seconds
	}
	for _, name := range slices.Sorted(maps.Keys(k.metrics)) {
		s.add(name, strconv.FormatFloat(k.metrics[name], 'g', 6, 64))
	}
	if o.LearningRate != nil {
		s.add("learning_rate", strconv.FormatFloat(*o.LearningRate, 'g', 6, 64))
	}
	s.add("current_step", strconv.FormatInt(o.Step, 10))
	s.add("total_steps", strconv.FormatInt(all, 10))
	s.add("current_epoch", strconv.Itoa(min(o.EpochsDone+1, o.Epochs)))
	s.add("total_epochs", strconv.Itoa(o.Epochs))
	return trainJobStatus{s}
}

func (s *trainerStatus) add(name, value string) {
	s.Metrics = append(s.Metrics, kubeflowMetric{name, value})
}

func (k *Kubeflow) post(ctx context.Context, status trainJobStatus) error {
	if k.client == nil {
		client, err := k.newClient()
		if err != nil {
			return err
		}
		k.client = client
	}
	body, err := json.Marshal(status)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, k.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if k.Token != "" {
		token, err := os.ReadFile(k.Token)
		if err != nil {
			return fmt.Errorf("the token: %w", err)
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := k.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %s: %s", k.URL, answer.Status, cmp.Or(strings.TrimSpace(string(text)), "no reason"))
	}
	return err
}

func (k *Kubeflow) newClient() (*http.Client, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if k.CACert != "" {
		text, err := os.ReadFile(k.CACert)
		if err != nil {
			return nil, fmt.Errorf("the certificate of the authority: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate in PEM format", k.CACert)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, Timeout: kubeflowTimeout}, nil
}
