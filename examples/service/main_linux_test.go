package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/savedmodels"
)

// serviceEnv makes the test binary run the program.
const serviceEnv = "STEADYFIT_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceEnv) != "" {
		runtime.MemProfileRate = 0 // as in the program, which has no profiler
		main()
		return
	}
	os.Exit(m.Run())
}

// process is a service that runs.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	dir    string
	output *printed
}

// printed keeps the output of a process.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *printed) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *printed) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start starts a service in a folder, whose first version is the built-in digits.
func start(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	first := filepath.Join(dir, "models", "1")
	if _, err := os.Stat(first); err != nil {
		require.NoError(t, os.CopyFS(first, os.DirFS(model.Dir)))
	}
	p := &process{t: t, dir: dir, output: &printed{}}
	p.cmd = exec.Command(os.Args[0], append([]string{"-listen", "127.0.0.1:0", "-name", "digits",
		"-models", filepath.Join(dir, "models"), "-jobs", filepath.Join(dir, "jobs")}, args...)...)
	p.cmd.Env = append(os.Environ(), serviceEnv+"=1")
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.stop)
	address := regexp.MustCompile(`listening address=(\S+)`)
	require.Eventually(t, func() bool {
		found := address.FindStringSubmatch(p.output.String())
		if found != nil {
			p.url = "http://" + found[1]
		}
		return found != nil
	}, time.Minute, time.Millisecond, "%s", p.output)
	return p
}

// stop ends the service as Kubernetes does.
func (p *process) stop() {
	if p.cmd.ProcessState != nil {
		return
	}
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(p.t, p.cmd.Wait(), "%s", p.output)
}

// do sends a request, and returns the status code and the body of the response.
func (p *process) do(method, path, kind string, body []byte) (code int, text []byte) {
	r, err := http.NewRequest(method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, []byte(err.Error())
	}
	r.Header.Set("Content-Type", kind)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return response.StatusCode, text
}

// table returns the digits as a CSV file. shift is added to the labels; other than 0, it makes them wrong.
func table(t *testing.T, shift int) []byte {
	t.Helper()
	digits, _, err := data.Builtin("digits")
	require.NoError(t, err)
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	header := []string{"label"}
	for i := range 64 {
		header = append(header, fmt.Sprintf("pixel%d", i))
	}
	require.NoError(t, w.Write(header))
	for b, err := range digits.Batches(data.Pass{Batch: 64}) {
		require.NoError(t, err)
		x, _ := b.Field("x")
		y, _ := b.Field("y")
		for i := range b.Size {
			row := []string{strconv.FormatInt((y.Values.([]int64)[i]+int64(shift))%10, 10)}
			for _, v := range x.Values.([]uint8)[64*i : 64*i+64] {
				row = append(row, strconv.Itoa(int(v)))
			}
			require.NoError(t, w.Write(row))
		}
	}
	w.Flush()
	return text.Bytes()
}

// add adds a job, and returns its path.
func (p *process) add(query string, content []byte) string {
	p.t.Helper()
	code, text := p.do("POST", "/jobs"+query, "text/csv", content)
	require.Equal(p.t, 200, code, "%s", text)
	var j job
	require.NoError(p.t, json.Unmarshal(text, &j))
	assert.Equal(p.t, "queued", j.State)
	return fmt.Sprintf("/jobs/%d", j.ID)
}

// event is a server-sent event.
type event struct {
	id         int
	kind, data string
}

// events reads the events of a job after one, until its end.
func (p *process) events(path string, after int) (all []event) {
	p.t.Helper()
	r, err := http.NewRequest("GET", p.url+path+"/events", nil)
	require.NoError(p.t, err)
	r.Header.Set("Last-Event-ID", strconv.Itoa(after))
	response, err := http.DefaultClient.Do(r)
	require.NoError(p.t, err)
	defer response.Body.Close()
	if response.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(response.Body)
		require.Fail(p.t, response.Status, "%s\n%s", text, p.output)
	}
	var e event
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			e.id, err = strconv.Atoi(value)
			require.NoError(p.t, err)
		case "event":
			e.kind = value
		case "data":
			e.data = value
		case "":
			all = append(all, e)
		}
	}
	require.NoError(p.t, lines.Err())
	return all
}

// end waits for the end of a job.
func (p *process) end(path string) (j job) {
	p.t.Helper()
	all := p.events(path, 0)
	require.NotEmpty(p.t, all)
	last := all[len(all)-1]
	require.Equal(p.t, "end", last.kind, "%s", p.output)
	require.NoError(p.t, json.Unmarshal([]byte(last.data), &j))
	return j
}

// scores returns the probabilities of the first images of the digits.
func (p *process) scores(images []byte) (scores []float64, err error) {
	code, text := p.do("POST", "/v1/models/digits:predict", "application/json", images)
	var answer struct {
		Predictions []struct{ Probabilities []float64 }
	}
	if code != 200 {
		return nil, fmt.Errorf("%d: %s", code, text)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	for _, a := range answer.Predictions {
		scores = append(scores, a.Probabilities...)
	}
	return scores, nil
}

func equal(a, b []float64) bool {
	for i := range a {
		if len(a) != len(b) || math.Abs(a[i]-b[i]) > 1e-4 {
			return false
		}
	}
	return true
}

// instances returns a request with n images.
func instances(t *testing.T, n int) []byte {
	t.Helper()
	rows, err := csv.NewReader(bytes.NewReader(table(t, 0))).ReadAll()
	require.NoError(t, err)
	var all [][]json.Number
	for _, row := range rows[1 : n+1] {
		var image []json.Number
		for _, v := range row[1:] {
			image = append(image, json.Number(v))
		}
		all = append(all, image)
	}
	text, err := json.Marshal(map[string]any{"instances": all})
	require.NoError(t, err)
	return text
}

func (p *process) left() []string {
	p.t.Helper()
	found, err := filepath.Glob(filepath.Join(p.dir, "jobs", "*"))
	require.NoError(p.t, err)
	require.Equal(p.t, filepath.Join(p.dir, "jobs", "lock"), found[0])
	return found[1:]
}

// A better model is promoted, and answers at once. A worse one is refused. A rollback brings the version before it back.
func TestPromotionRefusalAndRollback(t *testing.T) {
	p := start(t, t.TempDir(), "-holdout", "builtin:digits")
	images := instances(t, 2)
	first, err := p.scores(images)
	require.NoError(t, err)

	path := p.add("?epochs=3", table(t, 0))
	better := p.end(path)
	assert.Equal(t, "promoted", better.State, "%s", p.output)
	assert.Less(t, better.Losses[1], better.Losses[0])
	code, text := p.do("GET", "/v1/models/digits", "", nil)
	assert.Equal(t, 200, code)
	assert.Equal(t, fmt.Sprintf(`{"model_version_status":[{"version":"%d","state":"AVAILABLE","status":{"error_code":"OK","error_message":""}}]}`, better.ID), string(text))
	second, err := p.scores(images)
	require.NoError(t, err)
	assert.False(t, equal(first, second))

	all := p.events(path, 0)
	require.Len(t, all, 4)
	for i, e := range all[:3] {
		var record struct{ Epoch int }
		require.NoError(t, json.Unmarshal([]byte(e.data), &record))
		assert.Equal(t, event{i + 1, "epoch", e.data}, e)
		assert.Equal(t, i+1, record.Epoch)
	}
	assert.Equal(t, all[2:], p.events(path, 2), "the events after the one that the client has")
	assert.Equal(t, all, p.events(path, -5))
	code, _ = p.do("GET", path, "", nil)
	assert.Equal(t, 200, code)

	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("data", "wrong.csv.gz")
	require.NoError(t, err)
	compressed := gzip.NewWriter(file)
	_, err = compressed.Write(table(t, 1))
	require.NoError(t, err)
	require.NoError(t, compressed.Close())
	require.NoError(t, w.Close())
	code, text = p.do("POST", "/jobs?epochs=2", w.FormDataContentType(), form.Bytes())
	require.Equal(t, 200, code, "%s", text)
	var j job
	require.NoError(t, json.Unmarshal(text, &j))
	worse := p.end(fmt.Sprintf("/jobs/%d", j.ID))
	assert.Equal(t, "refused", worse.State)
	assert.Equal(t, better.ID, worse.Base)
	assert.InDelta(t, better.Losses[1], worse.Losses[0], 1e-6)
	assert.Greater(t, worse.Losses[1], worse.Losses[0])
	still, err := p.scores(images)
	require.NoError(t, err)
	assert.True(t, equal(second, still))
	assert.Empty(t, p.left())

	code, text = p.do("POST", "/v1/models/digits:rollback", "", nil)
	assert.Equal(t, 200, code)
	assert.JSONEq(t, `{"version": 1}`, string(text))
	back, err := p.scores(images)
	require.NoError(t, err)
	assert.True(t, equal(first, back))
	code, text = p.do("POST", "/v1/models/digits:rollback", "", nil)
	assert.Equal(t, 409, code, "%s", text)
	_, text = p.do("GET", "/metrics", "", nil)
	for _, line := range []string{`service_jobs_total{state="promoted"} 1`, `service_jobs_total{state="refused"} 1`,
		`service_model_version 1`, `service_prediction_seconds_count 4`, `service_prediction_seconds_bucket{le="+Inf"} 4`} {
		assert.Contains(t, string(text), line+"\n")
	}
	assert.Regexp(t, `service_memory_bytes\{layer="anon"\} [0-9]{7,}\n`, string(text))
}

func TestErrors(t *testing.T) {
	p := start(t, t.TempDir())
	for _, c := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"POST", "/v1/models/digits:predict", `{"instances": [[1]]}`, 400, `{"error":"predict: the call does not fit the model: signature predict, input x: the data does not fit the model: expected samples of shape [64], got samples of shape [1]"}`},
		{"POST", "/v1/models/other:predict", `{}`, 404, `{"error":"POST /v1/models/other:predict is not served; expected POST /v1/models/digits:predict or GET /v1/models/digits"}`},
		{"POST", "/v1/models/digits:predict", strings.Repeat(" ", maxBody/16+1), 413, `{"error":"http: request body too large"}`},
		{"POST", "/jobs", strings.Repeat(" ", maxBody+1), 413, `{"error":"http: request body too large"}`},
		{"POST", "/jobs?epochs=no", "", 400, `{"error":"Bad Request: expected only epochs and batch, as numbers of at least 1"}`},
		{"POST", "/jobs?epohs=1", "", 400, `{"error":"Bad Request: expected only epochs and batch, as numbers of at least 1"}`},
		{"GET", "/jobs/7", "", 404, `{"error":"Not Found: job 7"}`},
		{"DELETE", "/jobs/..%2Fmodels", "", 404, `{"error":"Not Found: job ../models"}`},
	} {
		code, text := p.do(c.method, c.path, "", []byte(c.body))
		assert.Equal(t, c.code, code, c.path)
		assert.Equal(t, c.says, strings.TrimSpace(string(text)), c.path)
	}
	for _, c := range []struct {
		size, code int
		says       string
	}{{maxBody, 413, `{"error":"http: request body too large"}`},
		{0, 400, `{"error":"Bad Request: file data of the form: unexpected EOF"}`}} {
		form := "--b\r\nContent-Disposition: form-data; name=\"data\"; filename=\"a.csv\"\r\n\r\n" + strings.Repeat(" ", c.size)
		code, text := p.do("POST", "/jobs", "multipart/form-data; boundary=b", []byte(form))
		assert.Equal(t, c.code, code)
		assert.Equal(t, c.says, strings.TrimSpace(string(text)))
	}
	j := p.end(p.add("", []byte("pixel0,label\na,1\n")))
	assert.Equal(t, "failed", j.State)
	assert.Contains(t, j.Error, "line 2")
	assert.Empty(t, p.left())
}

// await waits until the job that runs has a checkpoint.
func (p *process) await(path string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		found, err := fit.Checkpoints(filepath.Join(p.dir, path, "checkpoints"))
		return err == nil && len(found) > 0
	}, time.Minute, time.Millisecond, "%s", p.output)
}

// A job that is removed leaves nothing, and the next one runs.
func TestRemovedJob(t *testing.T) {
	p := start(t, t.TempDir())
	long := p.add("?epochs=1000000", table(t, 0))
	next := p.add("?epochs=1", table(t, 0))
	waiting := p.add("?epochs=1", table(t, 0))
	p.await(long)
	for _, path := range []string{waiting, long} {
		code, _ := p.do("DELETE", path, "", nil)
		assert.Equal(t, 200, code)
	}
	assert.Equal(t, "cancelled", p.end(long).State)
	assert.Equal(t, "promoted", p.end(next).State)
	assert.Equal(t, "cancelled", p.end(waiting).State)
	assert.Empty(t, p.left())
	_, text := p.do("GET", "/metrics", "", nil)
	assert.Contains(t, string(text), "service_jobs_total{state=\"cancelled\"} 2\n")
}

// A job resumes after its process was killed, and after the service was started again.
//
//lane:skip race (ends processes)
func TestJobResumes(t *testing.T) {
	const epochs = 100
	p := start(t, t.TempDir())
	path := p.add(fmt.Sprintf("?epochs=%d", epochs), table(t, 0))
	p.await(path)
	require.NoError(t, syscall.Kill(workerOf(t, p.cmd.Process.Pid), syscall.SIGKILL))
	require.Eventually(t, func() bool { return strings.Contains(p.output.String(), "restarting it") }, time.Minute, time.Millisecond, "%s", p.output)
	p.stop()
	p = start(t, p.dir)
	j := p.end(path)
	assert.Equal(t, "promoted", j.State, "%s", p.output)
	all := p.events(path, 0)
	require.Len(t, all, epochs+1)
	for i, e := range all {
		assert.Equal(t, i+1, e.id)
	}
	assert.Empty(t, p.left())
}

// A job whose version was removed while it runs says so.
//
//lane:skip race (ends processes)
func TestJobOfARemovedVersion(t *testing.T) {
	p := start(t, t.TempDir(), "-holdout", "builtin:digits")
	first := p.end(p.add("?epochs=1", table(t, 0)))
	require.Equal(t, "promoted", first.State, "%s", p.output)
	path := p.add("?epochs=1000000", table(t, 0))
	p.await(path)
	code, text := p.do("POST", "/v1/models/digits:rollback", "", nil)
	require.Equal(t, 200, code, "%s", text)
	require.NoError(t, syscall.Kill(workerOf(t, p.cmd.Process.Pid), syscall.SIGKILL))
	j := p.end(path)
	assert.Equal(t, "failed", j.State)
	assert.Equal(t, fmt.Sprintf("version %d does not serve any more; add the job again", first.ID), j.Error)
}

func workerOf(t *testing.T, pid int) (child int) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	require.NoError(t, err)
	for _, path := range tasks {
		if text, err := os.ReadFile(path); err == nil && len(bytes.Fields(text)) > 0 {
			child, err = strconv.Atoi(string(bytes.Fields(text)[0]))
			require.NoError(t, err)
		}
	}
	require.NotZero(t, child)
	return child
}

// A service that was killed leaves jobs that are incomplete or promoted. Its complete jobs are read, however many there
// are.
func TestLeftJobs(t *testing.T) {
	dir := t.TempDir()
	s := &service{models: filepath.Join(dir, "models"), dir: filepath.Join(dir, "jobs")}
	write := func(folder string, id int) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Join(s.dir, folder), 0o777))
		text := fmt.Appendf(nil, `{"id": %d, "state": "queued"}`, id)
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, folder, "job.json"), text, 0o666))
	}
	const n = 2 * keep
	for id := range n {
		write(strconv.Itoa(100+id), 100+id)
	}
	write(partial, 7)
	write("99", 99)
	require.NoError(t, os.MkdirAll(filepath.Join(s.models, "99"), 0o777))
	require.NoError(t, s.load())
	assert.Len(t, s.jobs, n)
	assert.Len(t, s.queue, n)
	assert.NoDirExists(t, filepath.Join(s.dir, partial))
	assert.NoDirExists(t, filepath.Join(s.dir, "99"))
	require.ErrorContains(t, (&service{models: s.models, dir: s.dir}).load(), "lock the jobs folder "+s.dir+", which one service may use at a time")
	_, err := s.addJob(httptest.NewRequest("POST", "/jobs", strings.NewReader("")))
	assert.ErrorContains(t, err, "20 jobs wait")
}

// Predictions do not wait for the disk.
func TestObservesWhileAJobIsAdded(t *testing.T) {
	var s service
	s.mu.Lock()
	s.observe(time.Second, nil)
	assert.Equal(t, "1", s.metrics.Get("prediction_seconds_count").String())
}

// While jobs train and versions are swapped, no request fails, and each answer is that of one version.
// STEADYFIT_TEST_SOAK makes it last two minutes, and STEADYFIT_TEST_TRAININGS is the number of trainings of a longer
// run, whose memory must not leak.
func TestUnderLoad(t *testing.T) {
	trainings, _ := strconv.Atoi(os.Getenv("STEADYFIT_TEST_TRAININGS"))
	limit := time.Now().Add(2 * time.Minute)
	soak := os.Getenv("STEADYFIT_TEST_SOAK") != "" || trainings > 0
	goes := func(done int) bool {
		if trainings > 0 || !soak {
			return done < max(trainings, 2)
		}
		return time.Now().Before(limit)
	}
	p := start(t, t.TempDir(), "-holdout", "builtin:digits")
	images, content := instances(t, 2), table(t, 0)
	content = bytes.Join(bytes.SplitAfterN(content, []byte("\n"), 322)[:321], nil) // 320 images
	var known [2][]float64                                                         // the answers of the first version and of a trained one, which are all equal
	round := func() {
		require.Equal(t, "promoted", p.end(p.add("?epochs=1", content)).State, "%s", p.output)
	}
	back := func() {
		code, text := p.do("POST", "/v1/models/digits:rollback", "", nil)
		require.Equal(t, 200, code, "%s", text)
		removed, err := filepath.Glob(filepath.Join(p.dir, "jobs", "version-*"))
		require.NoError(t, err)
		for _, path := range removed {
			require.NoError(t, os.RemoveAll(path))
		}
	}
	var err error
	known[0], err = p.scores(images)
	require.NoError(t, err)
	round()
	known[1], err = p.scores(images)
	require.NoError(t, err)
	require.False(t, equal(known[0], known[1]))
	back()

	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var counts [2]atomic.Int64
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				scores, err := p.scores(images)
				switch {
				case err != nil:
					t.Error(err)
					return
				case equal(scores, known[0]):
					counts[0].Add(1)
				case equal(scores, known[1]):
					counts[1].Add(1)
				default:
					t.Errorf("%v is the answer of no version", scores)
					return
				}
			}
		})
	}
	var after memory.Series
	done := 0
	anon := regexp.MustCompile(`service_memory_bytes\{layer="anon"\} ([0-9]+)`)
	for ; goes(done); done++ {
		round()
		back()
		_, text := p.do("GET", "/metrics", "", nil)
		found := anon.FindSubmatch(text)
		require.NotNil(t, found, "%s", text)
		bytes, err := strconv.ParseInt(string(found[1]), 10, 64)
		require.NoError(t, err)
		after.Append(&memory.Sample{Step: done, Values: []memory.Value{{Layer: memory.Anon, Reading: memory.Known(memory.Bytes(bytes))}}})
		if (done+1)%100 == 0 {
			t.Logf("%d trainings, %d requests; memory: %v", done+1, counts[0].Load()+counts[1].Load(), after.Judge(memory.Criteria{}))
		}
	}
	stop()
	group.Wait()
	assert.Positive(t, counts[0].Load())
	assert.Positive(t, counts[1].Load())
	verdict := after.Judge(memory.Criteria{})
	t.Logf("%d trainings, %d swaps, %d requests; memory: %v, slope %+v", done, 2*done, counts[0].Load()+counts[1].Load(), verdict, verdict.Slope)
	if trainings > 0 { // two minutes are the warm-up of malloc
		assert.NotEqual(t, memory.Leak, verdict.Kind)
	}
	assert.Empty(t, p.left())
}
