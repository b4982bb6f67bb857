package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfenv"
	"steadyfit/internal/tflibrary"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// tensorFlow holds the facts about the library that later checks need.
type tensorFlow struct {
	info  tfbind.Info
	found bool
	// gpu reports whether the library was built with GPU support.
	gpu bool
	// runPath are the folders in which the library searches for GPU libraries.
	runPath []string
	// hasGPU reports whether a session listed a GPU.
	hasGPU bool
}

// files returns the files that may contain TensorFlow's strings.
func (t tensorFlow) files() (files []string) {
	for _, f := range []string{t.info.Library, t.info.Framework} {
		if t.found && f != "" {
			files = append(files, f)
		}
	}
	return files
}

func (t tensorFlow) String() string {
	if t.info.Version == "" {
		return "this TensorFlow"
	}
	return "TensorFlow " + t.info.Version
}

// onlyInGPUBuilds is a string that occurs only in GPU builds.
const onlyInGPUBuilds = "TF_GPU_ALLOCATOR"

func checkTensorFlow(ctx context.Context, m machine, p processor) (tensorFlow, []Check) {
	t, checks := openTensorFlow(ctx, m, p)
	return t, append(checks, oneDNN(m, p), poolAllocator(m, p))
}

func openTensorFlow(ctx context.Context, m machine, p processor) (t tensorFlow, checks []Check) {
	add := func(c Check) { checks = append(checks, c) }
	location, err := m.locate(m.tensorflow)
	if err != nil {
		add(problem("library", whyNot(err), fixOf(err)))
		return t, checks
	}
	t.found, t.info.Library, t.info.Framework = true, location.Library, location.Framework
	t.describeBuild(m)
	kind := "CPU"
	if t.gpu {
		kind = "CPU and GPU"
	}
	add(ok("library", fmt.Sprintf("%s, for the %s, found by %s", location.Library, kind, location.Source)))
	if p.tooOld() {
		// Opening the library would crash this process.
		add(problem("version", "not opened: it needs a CPU with AVX", "see the CPU's instructions below"))
		return t, checks
	}
	info, err := m.load(m.tensorflow)
	if err != nil {
		t.info.Version = info.Version
		add(problem("version", whyNot(err), fixOf(err)))
		return t, checks
	}
	t.info = info
	add(ok("version", fmt.Sprintf("%s; tested are %s to %s", info.Version, tflibrary.MinVersion, tflibrary.MaxVersion)))

	devices, err := m.try(ctx)
	ran := "ran an addition; devices: " + describeDevices(devices)
	t.hasGPU = slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
	switch {
	case err != nil:
		add(problem("session", "failed: "+oneLine(err.Error()),
			"install that TensorFlow again (`make runtime`); if it names a GPU, hide the GPUs: CUDA_VISIBLE_DEVICES=-1"))
	case m.needGPU && !t.hasGPU:
		add(problem("session", ran+"; a GPU was asked for", "see the group GPU below, and the lines that TensorFlow printed"))
	default:
		add(ok("session", ran))
	}
	return t, checks
}

// describeBuild reads the library's files without opening it as a library. A file that cannot
// be read counts as a CPU build.
func (t *tensorFlow) describeBuild(m machine) {
	for _, f := range t.files() {
		folders, err := m.runPath(f)
		if err != nil {
			continue
		}
		for _, dir := range folders {
			t.gpu = t.gpu || strings.Contains(dir, "/nvidia/") || strings.Contains(dir, "/cuda")
			if !slices.Contains(t.runPath, dir) {
				t.runPath = append(t.runPath, dir)
			}
		}
	}
	if !t.gpu {
		held, _ := m.contains(t.files(), []string{onlyInGPUBuilds})
		t.gpu = held[onlyInGPUBuilds]
	}
}

// whyNot describes in one line the reason why there is no TensorFlow, with the places that were
// searched.
func whyNot(err error) string {
	var e *tflibrary.LoadError
	if !errors.As(err, &e) {
		return oneLine(err.Error())
	}
	text := e.Problem
	if len(e.Tried) == 1 && !strings.Contains(text, e.Tried[0].Reason) {
		text += ": " + e.Tried[0].Reason
	}
	if len(e.Tried) > 1 {
		text += "; tried "
		for i, a := range e.Tried {
			if i > 0 {
				text += "; "
			}
			text += strings.TrimSpace(a.Source+" "+a.Path) + ": " + a.Reason
		}
	}
	return oneLine(text)
}

func fixOf(err error) string {
	var e *tflibrary.LoadError
	if errors.As(err, &e) && e.Fix != "" {
		return e.Fix
	}
	return "run `make runtime` in the steadyfit checkout, which fetches TensorFlow " + tflibrary.MaxVersion
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func describeDevices(devices []tfbind.Device) string {
	var names []string
	for _, d := range devices {
		_, name, short := strings.Cut(d.Name, "device:")
		if !short {
			name = d.Name
		}
		if d.Type == "GPU" {
			name += fmt.Sprintf(" (up to %v)", memory.Bytes(d.MemoryBytes))
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// trySession adds a number to itself on the device that TensorFlow chooses, and returns the
// list of devices.
func trySession(ctx context.Context) (devices []tfbind.Device, err error) {
	def, err := new(graphdef.Graph).Placeholder("x", tfbind.Float32).Add("sum", "AddV2", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}, "x", "x").Bytes()
	if err != nil {
		return nil, err
	}
	config, err := gpuopts.Options{MemoryGrowth: true}.ConfigProto()
	if err != nil {
		return nil, err
	}
	graph, err := tfbind.NewGraph()
	if err != nil {
		return nil, err
	}
	defer graph.Close()
	if err := graph.Import(def, ""); err != nil {
		return nil, err
	}
	session, err := tfbind.NewSession(graph, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	if devices, err = session.Devices(); err != nil {
		return nil, err
	}
	x, errX := graph.Output("x:0")
	sum, errSum := graph.Output("sum:0")
	if err := errors.Join(errX, errSum); err != nil {
		return devices, err
	}
	input, err := tfbind.NewTensor([]float32{1.5})
	if err != nil {
		return devices, err
	}
	defer input.Close()
	results, err := session.Run(ctx, tfbind.Feeds{x: input}, []tfbind.Output{sum})
	if err != nil {
		return devices, err
	}
	defer results.Close()
	if got, err := tfbind.Values[float32](results[0]); err != nil || got[0] != 3 {
		return devices, errors.Join(err, fmt.Errorf("1.5 + 1.5 gave %v", got))
	}
	return devices, nil
}

// oneDNN reports whether TensorFlow computes with oneDNN.
func oneDNN(m machine, p processor) Check {
	const name = "oneDNN"
	switch on, byVariable := oneDNNIsOn(m, p); {
	case !p.known() && !byVariable:
		return note(name, "unknown: it depends on the CPU's instructions", "")
	case on && byVariable:
		return ok(name, "on (TF_ENABLE_ONEDNN_OPTS)")
	case on:
		return ok(name, "on, by default on this CPU")
	case byVariable:
		return warning(name, "off (TF_ENABLE_ONEDNN_OPTS): convolutions were measured 4 times slower; memory comes from malloc",
			"for speed: `unset TF_ENABLE_ONEDNN_OPTS`; to return memory to the system at half that cost: TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1")
	}
	return warning(name, "off, by default on a CPU without AVX512_VNNI, AVX_VNNI, AVX512_BF16 and AMX: convolutions were measured 2.3 times slower than with oneDNN (AMD EPYC with AVX2), and small dense models as fast",
		"`steadyfit bench --auto on` measures the model both ways, and `fit` uses the faster one; other programs need TF_ENABLE_ONEDNN_OPTS=1")
}

// oneDNNIsOn uses the variable if it is set; otherwise the CPU decides (DefaultOneDnnPolicy in
// tensorflow/core/util/port.cc).
func oneDNNIsOn(m machine, p processor) (on, byVariable bool) {
	if on, ok := tfenv.Bool(m.env["TF_ENABLE_ONEDNN_OPTS"]); ok {
		return on, true
	}
	return p.has("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16") || p.neoverseV1, false
}

// poolAllocator reports whether large blocks on the CPU come from a pool or from malloc. This
// decides whether their memory is ever returned to the system.
func poolAllocator(m machine, p processor) Check {
	const name = "CPU allocator"
	on, byVariable := oneDNNIsOn(m, p)
	system, _ := tfenv.Bool(m.env["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"])
	switch {
	case !p.known() && !byVariable:
		return note(name, "unknown: it depends on oneDNN", "")
	case !on:
		return ok(name, "malloc")
	case system:
		return ok(name, "malloc (TF_ONEDNN_USE_SYSTEM_ALLOCATOR): memory can be returned to the system; steps of an image model were measured 1.8 times slower")
	}
	found := "oneDNN's pool, which holds its memory until the process ends"
	if limit, err := strconv.ParseUint(m.env["TF_MKL_ALLOC_MAX_BYTES"], 10, 63); err == nil {
		found += fmt.Sprintf("; at most %v (TF_MKL_ALLOC_MAX_BYTES)", memory.Bytes(limit))
	}
	return note(name, found, "to return memory to the system, for up to twice the step time: TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1")
}
