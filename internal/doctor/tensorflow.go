package doctor

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/resolved"
	"steadyfit/internal/tflibrary"
	"steadyfit/internal/tfprocess"
	"steadyfit/tfbind"
)

// tensorFlow holds the facts about the library that later checks need.
type tensorFlow struct {
	info  tfbind.Info
	found bool
	// gpu reports whether the library was built with GPU support.
	gpu bool
	// folder holds the library, without symbolic links.
	folder string
	// hasGPU reports whether a session listed a GPU.
	hasGPU bool
}

func checkTensorFlow(m machine) (tensorFlow, []Check) {
	t, checks := openTensorFlow(m)
	return t, append(checks, oneDNN(m), poolAllocator(m))
}

func openTensorFlow(m machine) (t tensorFlow, checks []Check) {
	add := func(c Check) { checks = append(checks, c) }
	location, err := m.locate(m.tensorflow)
	if err != nil {
		add(problem("library", whyNot(err), fixOf(err)))
		return t, checks
	}
	t.found, t.info.Library, t.info.Framework = true, location.Library, location.Framework
	t.folder = m.realFolder(location.Library)
	t.gpu = m.builtForGPU(location.Library) || m.builtForGPU(location.Framework)
	kind := "CPU"
	if t.gpu {
		kind = "CPU and GPU"
	}
	add(ok("library", fmt.Sprintf("%s, for the %s, found by %s", location.Library, kind, location.Source)))
	if m.cpu.tooOld() {
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

	devices, err := m.try()
	ran := "opened; devices: " + resolved.Devices(devices)
	t.hasGPU = slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
	switch {
	case err != nil:
		add(problem("session", "failed: "+oneLine(err.Error()),
			"install that TensorFlow again (`make runtime`); if it names a GPU, hide the GPUs: CUDA_VISIBLE_DEVICES=-1"))
	case m.needGPU && !t.hasGPU:
		add(problem("session", ran+"; a GPU was asked for",
			"see the group GPU below, and the lines that TensorFlow printed"))
	default:
		add(ok("session", ran))
	}
	return t, checks
}

// whyNot describes in one line the reason why there is no TensorFlow, with the places that were
// searched.
func whyNot(err error) string {
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), tflibrary.ErrNone.Error()+": "), "\nfix: ")
	return oneLine(strings.NewReplacer("\ntried:\n", "; tried ", "\n  ", "; ").Replace(text))
}

func fixOf(err error) string {
	var e *tflibrary.LoadError
	if errors.As(err, &e) && e.Fix != "" {
		return e.Fix
	}
	return "run `make runtime` in the steadyfit checkout, which fetches TensorFlow " + tflibrary.MaxVersion
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// trySession opens a session, and returns its devices.
func trySession() ([]tfbind.Device, error) {
	config, err := gpuopts.Options{MemoryGrowth: true}.ConfigProto()
	if err != nil {
		return nil, err
	}
	graph, err := tfbind.NewGraph()
	if err != nil {
		return nil, err
	}
	defer graph.Close()
	session, err := tfbind.NewSession(graph, config)
	if err != nil {
		return nil, err
	}
	devices, err := session.Devices()
	return devices, errors.Join(err, session.Close())
}

// oneDNN reports whether TensorFlow computes with oneDNN.
func oneDNN(m machine) Check {
	const name = "oneDNN"
	switch on, byVariable := oneDNNIsOn(m); {
	case on && byVariable:
		return ok(name, "on (TF_ENABLE_ONEDNN_OPTS)")
	case on:
		return ok(name, "on, by default on this CPU")
	case byVariable:
		return warning(name, "off (TF_ENABLE_ONEDNN_OPTS): convolutions were measured 4 times slower; memory comes from "+
			"malloc",
			"for speed: `unset TF_ENABLE_ONEDNN_OPTS`; "+
				"to return memory to the system at half that cost: TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1")
	}
	return warning(name, "off, by default on a CPU without AVX512_VNNI, AVX_VNNI, AVX512_BF16 and AMX: "+
		"convolutions were measured 2.3 times slower than with oneDNN (AMD EPYC with AVX2), and small dense models as fast",
		"`steadyfit fit --auto on` measures a long training both ways, and uses the faster one; "+
			"other programs need TF_ENABLE_ONEDNN_OPTS=1")
}

// oneDNNIsOn uses the variable if it is set; otherwise the CPU decides (DefaultOneDnnPolicy in
// tensorflow/core/util/port.cc).
func oneDNNIsOn(m machine) (on, byVariable bool) {
	if on, ok := tfprocess.ParseBool(m.env["TF_ENABLE_ONEDNN_OPTS"]); ok {
		return on, true
	}
	return m.cpu.has("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"), false
}

// poolAllocator reports whether large blocks on the CPU come from a pool or from malloc. This
// decides whether their memory is ever returned to the system.
func poolAllocator(m machine) Check {
	const name = "CPU allocator"
	on, _ := oneDNNIsOn(m)
	system, _ := tfprocess.ParseBool(m.env["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"])
	switch {
	case !on:
		return ok(name, "malloc")
	case system:
		return ok(name, "malloc (TF_ONEDNN_USE_SYSTEM_ALLOCATOR): "+
			"memory can be returned to the system; steps of an image model were measured 1.8 times slower")
	}
	return note(name, "oneDNN's pool, which holds its memory until the process ends",
		"to return memory to the system, for up to twice the step time: TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1")
}

// builtForGPU reports whether a library of TensorFlow searches for others in folders of CUDA, as every build
// with GPU support does. A file that cannot be read counts as a CPU build.
func builtForGPU(file string) bool {
	f, err := elf.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		texts, err := f.DynString(tag)
		text := strings.Join(texts, ":")
		if err == nil && (strings.Contains(text, "/nvidia/") || strings.Contains(text, "/cuda")) {
			return true
		}
	}
	return false
}
