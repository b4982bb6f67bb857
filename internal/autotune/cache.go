package autotune

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/shirou/gopsutil/v3/cpu"

	"steadyfit/internal/files"
	"steadyfit/internal/gpu"
	"steadyfit/internal/tfenv"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// CacheDir returns the folder for measurements in os.UserCacheDir, or "" if there is none.
func CacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "steadyfit", "tune")
}

// key holds everything that a measurement depends on. It leaves out limits and the budget, so
// one measurement serves all trainings with the same steps.
type key struct {
	Model string `json:"model"`
	Batch int    `json:"batch"`
	// Fields are the names, types and shapes of the data.
	Fields []string `json:"fields"`
	// Options are the options of the session before a choice.
	Options session.Options `json:"options"`
	// Environment lists variables that change how TensorFlow runs.
	Environment []string `json:"environment,omitempty"`
	TensorFlow  string   `json:"tensorflow"`
	// Library identifies the file of TensorFlow by path, size and time, since another build may
	// have the same version.
	Library string `json:"library"`
	Program string `json:"program"`
	CPU     string `json:"cpu"`
	// Cores are the cores that this process may use. Procs is GOMAXPROCS, which follows the
	// quota of the control group.
	Cores int      `json:"cores"`
	Procs int      `json:"procs"`
	GPUs  []string `json:"gpus,omitempty"`
}

func newKey(p *Plan, info tfbind.Info) key {
	k := key{
		Model: p.Model.Hash, Batch: p.Batch, Options: p.Options, Environment: tfenv.Influential(os.Environ()),
		TensorFlow: info.Version, Library: info.Library, Program: program(),
		CPU: runtime.GOARCH, Cores: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0),
	}
	// These options do not change the time of a step.
	k.Options.Seed, k.Options.ListAllocations, k.Options.AllowInexactSplit = 0, false, false
	if k.Options.StepsPerExecution == 1 {
		k.Options.StepsPerExecution = 0 // does not matter either
	}
	for _, f := range p.Data.Fields() {
		k.Fields = append(k.Fields, fmt.Sprintf("%s %s %v", f.Name, f.Type, f.Shape))
	}
	if file, err := os.Stat(info.Library); err == nil {
		k.Library = fmt.Sprintf("%s %d %s", info.Library, file.Size(), file.ModTime().UTC().Format(time.RFC3339Nano))
	}
	if list, err := cpu.Info(); err == nil && len(list) > 0 {
		k.CPU = cmp.Or(list[0].ModelName, k.CPU)
	}
	for _, g := range gpu.Kernel(os.DirFS("/")) {
		k.GPUs = append(k.GPUs, g.Name)
	}
	return k
}

func (k key) equal(other key) bool {
	a, err1 := json.Marshal(k)
	b, err2 := json.Marshal(other)
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}

// program identifies the build of this program: the version of its module and, for a build from
// a repository, the commit.
func program() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" || s.Key == "-race" {
			text += " " + s.Value
		}
	}
	return text
}

// format is the name and the version of the format of cache files. The version also changes when a
// field gets another meaning.
const format = "steadyfit tune 6"

// entry is the content of a cache file.
type entry struct {
	Format string `json:"format"`
	// Key is compared when a file is read, since the file name has only a part of its hash.
	Key key `json:"key"`
	// PlainSeconds is the time of a plain step; 0 if unknown.
	PlainSeconds float64 `json:"plain_seconds,omitempty"`
	// Choice is nil if there were no trials.
	Choice *Choice `json:"choice,omitempty"`
	// Trials and BudgetTrials are the measurements of Trials, without and with a memory budget.
	Trials       []Measurement `json:"trials,omitempty"`
	BudgetTrials []Measurement `json:"budget_trials,omitempty"`
}

func (k key) hash() (string, error) {
	text, err := json.Marshal(k)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), err
}

// Key returns a hash of everything that a measurement of the plan depends on.
func (p *Plan) Key() (string, error) {
	info, err := tfbind.Load("")
	if err != nil {
		return "", err
	}
	return newKey(p, info).hash()
}

// path returns the cache file of a key.
func (p *Plan) path(k key) (string, error) {
	hash, err := k.hash()
	return filepath.Join(p.Cache, hash+".json"), err
}

// load returns the entry of a key, or an empty one if none is usable.
func (p *Plan) load(k key) entry {
	none, e := entry{Format: format, Key: k}, entry{}
	if p.Cache == "" {
		return none
	}
	path, err := p.path(k)
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err == nil && (e.Format != format || !e.Key.equal(k)) {
		err = errors.New("it belongs to another format, model, machine or setting")
	}
	if err == nil {
		return e
	}
	if !errors.Is(err, fs.ErrNotExist) && p.Log != nil {
		p.Log.Debug("a cached choice is not used", "file", path, "error", err)
	}
	return none
}

// save writes an entry.
func (p *Plan) save(e entry) error {
	if p.Cache == "" {
		return nil
	}
	path, err := p.path(e.Key)
	if err == nil {
		err = Keep(path, e)
	}
	if err != nil {
		return fmt.Errorf("cache a choice: %w", err)
	}
	return nil
}

// Keep writes a value as JSON to a file in the folder for measurements.
func Keep(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return err
	}
	return files.Stream(path, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// Note stores the time of a plain step of the training, from which Choose estimates later
// whether trials are worthwhile. TensorFlow must be open.
func (p *Plan) Note(step time.Duration) {
	if info, err := tfbind.Load(""); err == nil {
		e := p.load(newKey(p, info))
		e.PlainSeconds = step.Seconds()
		_ = p.save(e) // a failure only repeats trials
	}
}
