package tune

import (
	"bytes"
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
	"slices"
	"strings"
	"time"

	"steadyfit/internal/files"
	"steadyfit/internal/gpu"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// CacheDir is the folder of choices below the user's cache folder
// (os.UserCacheDir). Where there is none, it is empty, and nothing is kept.
func CacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "steadyfit", "tune")
}

// key is what a choice depends on.
type key struct {
	Model string `json:"model"`
	Batch int    `json:"batch"`
	// Fields are names, types and shapes of the data.
	Fields []string `json:"fields"`
	// Options are the settings that the candidates are put on top of.
	Options session.Options `json:"options"`
	// Environment are variables that change how TensorFlow runs.
	Environment []string `json:"environment,omitempty"`
	TensorFlow  string   `json:"tensorflow"`
	// Library is the file of TensorFlow, by path, size and time: another build may have
	// the same version.
	Library string `json:"library"`
	Program string `json:"program"`
	CPU     string `json:"cpu"`
	// Cores are those that this process may use, and Procs GOMAXPROCS, which follows the
	// quota of the control group.
	Cores int      `json:"cores"`
	Procs int      `json:"procs"`
	GPUs  []string `json:"gpus,omitempty"`
}

// newKey is the key of a plan. What is offered, and the budget, are not in it: one
// measurement serves all trainings whose steps would be the same.
func newKey(p *Plan, info tfbind.Info) key {
	k := key{
		Model: p.Model.Hash, Batch: p.Batch, Options: p.Options, Environment: environment(os.Environ()),
		TensorFlow: info.Version, Library: identify(info.Library), Program: program(),
		CPU: processor(), Cores: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0),
	}
	// These change nothing in a step's time.
	k.Options.Seed, k.Options.ListAllocations, k.Options.AllowInexactSplit = 0, false, false
	if k.Options.StepsPerExecution == 1 {
		k.Options.StepsPerExecution = 0 // the same
	}
	for _, f := range p.Data.Fields() {
		k.Fields = append(k.Fields, fmt.Sprintf("%s %s %v", f.Name, f.Type, f.Shape))
	}
	for _, g := range gpu.Kernel(os.DirFS("/")) {
		k.GPUs = append(k.GPUs, g.Name)
	}
	return k
}

// influential begin the names of variables that TensorFlow, XLA, oneDNN, CUDA and
// allocators read; of those that only log, nothing depends.
var (
	influential = []string{"TF_", "XLA_", "ONEDNN_", "DNNL_", "MKL_", "OMP_", "KMP_", "MALLOC_", "LD_PRELOAD", "CUDA_", "NVIDIA_", "GLIBC_TUNABLES"}
	logging     = []string{"TF_CPP_"}
)

// environment picks the variables that a choice depends on.
func environment(all []string) []string {
	begins := func(v string, with []string) bool {
		return slices.ContainsFunc(with, func(prefix string) bool { return strings.HasPrefix(v, prefix) })
	}
	var list []string
	for _, v := range all {
		if begins(v, influential) && !begins(v, logging) {
			list = append(list, v)
		}
	}
	slices.Sort(list)
	return list
}

// program is the build of this program: its module's version and, of a build from a
// repository, the commit.
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

// identify tells a file from others, and from later ones in its place.
func identify(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return path
	}
	return fmt.Sprintf("%s %d %s", path, info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano))
}

// processor is the model of the CPU.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// format is the format of the files of the cache, with the version of what they mean.
const format = "steadyfit tune 3"

// entry is a file of the cache.
type entry struct {
	Format string `json:"format"`
	// Key is compared when it is read: the name is only part of its sum.
	Key key `json:"key"`
	// PlainSeconds is the time of a plain step; 0 is not known.
	PlainSeconds float64 `json:"plain_seconds,omitempty"`
	// Choice is nil if there was no race.
	Choice *Choice `json:"choice,omitempty"`
}

func (e *entry) step() time.Duration { return seconds(e.PlainSeconds) }

// file is the path of an entry.
func (p *Plan) file(k key) (path string, text []byte, err error) {
	if text, err = json.Marshal(k); err != nil {
		return "", nil, err
	}
	sum := sha256.Sum256(text)
	return filepath.Join(p.Cache, hex.EncodeToString(sum[:12])+".json"), text, nil
}

// kept is the entry of a key; an empty one if there is none, or none that can be used.
func (p *Plan) kept(k key) entry {
	none := entry{Format: format, Key: k}
	if p.Cache == "" {
		return none
	}
	path, want, err := p.file(k)
	if err != nil {
		p.Log.Debug("no choice can be kept", "error", err)
		return none
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none
	}
	var e entry
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err == nil {
		err = e.check(want)
	}
	if err != nil {
		p.Log.Debug("a kept choice is not used", "file", path, "error", err)
		return none
	}
	return e
}

// check refuses an entry of another format or key.
func (e *entry) check(want []byte) error {
	if e.Format != format {
		return fmt.Errorf("its format is %q, expected %q", e.Format, format)
	}
	have, err := json.Marshal(e.Key)
	if err != nil {
		return err
	}
	if !bytes.Equal(have, want) {
		return errors.New("it is of another model, machine or setting")
	}
	return nil
}

// keep writes an entry. That it cannot be written, which is the error, costs only another
// race.
func (p *Plan) keep(k key, e entry) error {
	if p.Cache == "" {
		return nil
	}
	path, _, err := p.file(k)
	var text []byte
	if err == nil {
		text, err = json.MarshalIndent(e, "", "  ")
	}
	if err == nil {
		err = os.MkdirAll(p.Cache, 0o755)
	}
	if err == nil {
		err = files.Stream(path, func(w io.Writer) error {
			_, err := w.Write(append(text, '\n'))
			return err
		})
	}
	if err != nil {
		p.Log.Debug("a choice could not be kept", "file", path, "error", err)
		return fmt.Errorf("keep a choice: %w", err)
	}
	return nil
}

// Note keeps how long a step of the training took, which ran plain, for the next one of
// the same kind: it is then known whether a race is worth its time. What cannot be kept
// is no error. TensorFlow is open.
func (p Plan) Note(step time.Duration) {
	info, err := tfbind.Load("")
	if err != nil {
		return
	}
	if p.Log == nil {
		p.Log = discard
	}
	k := newKey(&p, info)
	e := p.kept(k)
	e.PlainSeconds = step.Seconds()
	_ = p.keep(k, e)
}
