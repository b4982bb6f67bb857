package autotune

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/shirou/gopsutil/v3/cpu"

	"steadyfit/internal/files"
	"steadyfit/internal/gpu"
	"steadyfit/internal/tfprocess"
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

// format is the version of the files in the folder for measurements.
const format = 9

// key returns a hash of everything that a measurement depends on. It leaves out the limits, so one
// measurement serves all trainings with the same steps.
func (p *Plan) key(info tfbind.Info) (string, error) {
	o := p.Options
	o.Seed, o.AllowInexactSplit = 0, false // they do not change the time of a step
	if o.StepsPerExecution == 1 {
		o.StepsPerExecution = 0 // which means the same
	}
	processor := runtime.GOARCH
	if list, err := cpu.Info(); err == nil && len(list) > 0 {
		processor = cmp.Or(list[0].ModelName, processor)
	}
	program, _ := debug.ReadBuildInfo()
	// GOMAXPROCS follows the quota of the control group.
	parts := []any{
		format, p.Model.Hash, p.Model.Tags, p.Model.Constants(), p.Batch, p.Budgeted, p.Data.Fields(), o,
		tfprocess.Influential(os.Environ()), info.Version, info.Library, program, processor, runtime.NumCPU(),
		runtime.GOMAXPROCS(0),
	}
	for _, g := range gpu.Kernel(os.DirFS("/")) {
		parts = append(parts, g.Name)
	}
	text, err := json.Marshal(parts)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), err
}

// store is the file with the measurements of a key.
type store struct {
	path string // empty if measurements are not stored
	// Plain is the measurement of plain steps.
	Plain        *Measurement  `json:"plain,omitempty"`
	Measurements []Measurement `json:"measurements"`
}

// open reads the stored measurements. A missing or damaged file has none.
func (p *Plan) open(info tfbind.Info) (*store, error) {
	if p.Cache == "" {
		return &store{}, nil
	}
	key, err := p.key(info)
	if err != nil {
		return nil, err
	}
	s := &store{path: filepath.Join(p.Cache, key+".json")}
	if text, err := os.ReadFile(s.path); err == nil && json.Unmarshal(text, s) != nil {
		*s = store{path: s.path}
	}
	return s, nil
}

// add stores a measurement. If replace is true, it replaces those of the same configuration.
func (s *store) add(m Measurement, replace bool) {
	if replace {
		same := func(e Measurement) bool { return e.Configuration == m.Configuration }
		s.Measurements = slices.DeleteFunc(s.Measurements, same)
	}
	s.Measurements = append(s.Measurements, m)
	s.save()
}

// save writes the file. If that is impossible, the next call measures again.
func (s *store) save() {
	if s.path == "" {
		return
	}
	if os.MkdirAll(filepath.Dir(s.path), 0o755) == nil {
		_ = files.Stream(s.path, func(w io.Writer) error { return json.NewEncoder(w).Encode(s) })
	}
}
