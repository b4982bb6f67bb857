package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/attr_value_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/gpuopts"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// tensorFlow is what later checks need to know of the library.
type tensorFlow struct {
	info  tfbind.Info
	found bool
	// gpu says that the library was built with GPU support.
	gpu bool
	// runPath are the folders in which it looks for GPU libraries.
	runPath []string
	// hasGPU says that a session listed a GPU.
	hasGPU bool
}

// files are the files that may hold TensorFlow's strings.
func (t tensorFlow) files() []string {
	var files []string
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

// onlyInGPUBuilds is a name that GPU builds alone contain.
const onlyInGPUBuilds = "TF_GPU_ALLOCATOR"

func checkTensorFlow(ctx context.Context, m machine, p processor) (tensorFlow, []Check) {
	var t tensorFlow
	settings := []Check{oneDNN(m, p), poolAllocator(m, p)}
	library := Check{Name: "library"}
	location, err := m.locate(m.tensorflow)
	if err != nil {
		library.Status, library.Found, library.Fix = Problem, whyNot(err), fixOf(err)
		return t, append([]Check{library}, settings...)
	}
	t.found, t.info.Location = true, location
	t.describeBuild(m)
	library.Found = fmt.Sprintf("%s, for the %s, found by %s", location.Library, t.kind(), location.Source)
	checks := []Check{library}

	version := Check{Name: "version"}
	if p.tooOld() {
		// Opening it would end this process, and the report with it.
		version.Status, version.Found = Problem, "not opened: it needs a CPU with AVX"
		version.Fix = "see the CPU's instructions below"
		return t, append(append(checks, version), settings...)
	}
	info, err := m.load(m.tensorflow)
	if err != nil {
		t.info.Version = info.Version
		version.Status, version.Found, version.Fix = Problem, whyNot(err), fixOf(err)
		return t, append(append(checks, version), settings...)
	}
	t.info = info
	version.Found = fmt.Sprintf("%s; tested are %s to %s", info.Version, tfbind.MinVersion, tfbind.MaxVersion)
	checks = append(checks, version)

	devices, err := m.try(ctx)
	session := Check{Name: "session", Found: "ran an addition; devices: " + describeDevices(devices)}
	t.hasGPU = slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
	switch {
	case err != nil:
		session.Status, session.Found = Problem, "failed: "+oneLine(err.Error())
		session.Fix = "install that TensorFlow again (`make runtime`); if it names a GPU, hide the GPUs: CUDA_VISIBLE_DEVICES=-1"
	case m.needGPU && !t.hasGPU:
		session.Status = Problem
		session.Found += "; a GPU was asked for"
		session.Fix = "see the group GPU below; what TensorFlow itself says of it stands in the lines it printed"
	}
	return t, append(append(checks, session), settings...)
}

func (t tensorFlow) kind() string {
	if t.gpu {
		return "CPU and GPU"
	}
	return "CPU"
}

// describeBuild reads what the library's files say, without opening it. A file
// that cannot be read counts as a build for the CPU; whether it opens is found
// out later.
func (t *tensorFlow) describeBuild(m machine) {
	for _, f := range t.files() {
		folders, err := m.runPath(f)
		if err != nil {
			continue
		}
		for _, dir := range folders {
			if strings.Contains(dir, "/nvidia/") || strings.Contains(dir, "/cuda") {
				t.gpu = true
			}
			if !slices.Contains(t.runPath, dir) {
				t.runPath = append(t.runPath, dir)
			}
		}
	}
	if !t.gpu {
		if held, err := m.contains(t.files(), []string{onlyInGPUBuilds}); err == nil {
			t.gpu = held[onlyInGPUBuilds]
		}
	}
}

// whyNot says in one line why there is no TensorFlow, with the places that were
// looked at.
func whyNot(err error) string {
	var e *tfbind.LoadError
	if !errors.As(err, &e) {
		return oneLine(err.Error())
	}
	text := e.Problem
	if len(e.Tried) > 1 {
		var tried []string
		for _, a := range e.Tried {
			place := a.Source
			if a.Path != "" {
				place += " " + a.Path
			}
			tried = append(tried, place+": "+a.Reason)
		}
		text += "; tried " + strings.Join(tried, "; ")
	} else if len(e.Tried) == 1 && !strings.Contains(text, e.Tried[0].Reason) {
		text += ": " + e.Tried[0].Reason
	}
	return oneLine(text)
}

func fixOf(err error) string {
	var e *tfbind.LoadError
	if errors.As(err, &e) && e.Fix != "" {
		return e.Fix
	}
	return "run `make runtime` in the steadyfit checkout, which fetches TensorFlow " + tfbind.MaxVersion
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

// trySession adds a number to itself on whatever device TensorFlow chooses, and
// lists the devices.
func trySession(ctx context.Context) (devices []tfbind.Device, err error) {
	float := &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_Type{Type: types_go_proto.DataType(tfbind.Float32)}}
	def, err := proto.Marshal(&graph_go_proto.GraphDef{Node: []*node_def_go_proto.NodeDef{
		{Name: "x", Op: "Placeholder", Attr: map[string]*attr_value_go_proto.AttrValue{"dtype": float}},
		{Name: "sum", Op: "AddV2", Input: []string{"x", "x"}, Attr: map[string]*attr_value_go_proto.AttrValue{"T": float}},
	}})
	if err != nil {
		return nil, fmt.Errorf("graph: %w", err)
	}
	config, err := gpuopts.Options{MemoryGrowth: true}.ConfigProto()
	if err != nil {
		return nil, fmt.Errorf("session options: %w", err)
	}
	graph, err := tfbind.NewGraph()
	if err != nil {
		return nil, fmt.Errorf("new graph: %w", err)
	}
	defer graph.Close()
	if err := graph.Import(def, ""); err != nil {
		return nil, fmt.Errorf("import graph: %w", err)
	}
	session, err := tfbind.NewSession(graph, config)
	if err != nil {
		return nil, fmt.Errorf("new session: %w", err)
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	if devices, err = session.Devices(); err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}

	x, err := graph.Output("x:0")
	if err != nil {
		return devices, fmt.Errorf("graph: %w", err)
	}
	sum, err := graph.Output("sum:0")
	if err != nil {
		return devices, fmt.Errorf("graph: %w", err)
	}
	input, err := tfbind.NewTensor([]float32{1.5})
	if err != nil {
		return devices, fmt.Errorf("input: %w", err)
	}
	defer input.Close()
	results, err := session.Run(ctx, tfbind.Feeds{x: input}, []tfbind.Output{sum})
	if err != nil {
		return devices, fmt.Errorf("run: %w", err)
	}
	defer results.Close()
	got, err := results[0].Float()
	if err != nil {
		return devices, fmt.Errorf("result: %w", err)
	}
	if got != 3 {
		return devices, fmt.Errorf("1.5 + 1.5 came out as %v", got)
	}
	return devices, nil
}

// oneDNN says whether TensorFlow computes with oneDNN. If no variable decides,
// the CPU does (DefaultOneDnnPolicy in tensorflow/core/util/port.cc).
func oneDNN(m machine, p processor) Check {
	c := Check{Name: "oneDNN"}
	switch on, byVariable := oneDNNIsOn(m, p); {
	case !p.known() && !byVariable:
		c.Status, c.Found = Note, "unknown: it depends on the CPU's instructions"
	case on && byVariable:
		c.Found = "on (TF_ENABLE_ONEDNN_OPTS)"
	case on:
		c.Found = "on, by default on this CPU"
	case byVariable:
		c.Status = Warning
		c.Found = "off (TF_ENABLE_ONEDNN_OPTS): convolutions were measured 3 times slower; memory goes back to malloc"
		c.Fix = "for speed: `unset TF_ENABLE_ONEDNN_OPTS`; to give memory back at half that price: TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1"
	default:
		c.Status = Note
		c.Found = "off, by default on a CPU without AVX512_VNNI, AVX_VNNI, AVX512_BF16 and AMX"
		c.Fix = "try TF_ENABLE_ONEDNN_OPTS=1, and compare with `steadyfit bench`"
	}
	return c
}

func oneDNNIsOn(m machine, p processor) (on, byVariable bool) {
	if on, ok := parseBool(m.env["TF_ENABLE_ONEDNN_OPTS"]); ok {
		return on, true
	}
	return p.has("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16") || p.neoverseV1, false
}

// parseBool reads a switch as TensorFlow does (ReadBoolFromEnvVar).
func parseBool(value string) (on, ok bool) {
	switch strings.ToLower(value) {
	case "1", "true":
		return true, true
	case "0", "false":
		return false, true
	}
	return false, false
}

// poolAllocator says where large blocks on the CPU come from, which decides
// whether memory is ever given back.
func poolAllocator(m machine, p processor) Check {
	c := Check{Name: "CPU allocator"}
	on, byVariable := oneDNNIsOn(m, p)
	system, _ := parseBool(m.env["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"])
	limit, err := strconv.ParseUint(m.env["TF_MKL_ALLOC_MAX_BYTES"], 10, 63)
	switch {
	case !p.known() && !byVariable:
		c.Status, c.Found = Note, "unknown: it depends on oneDNN"
	case !on:
		c.Found = "malloc"
	case system:
		c.Found = "malloc (TF_ONEDNN_USE_SYSTEM_ALLOCATOR): memory can be given back; steps of an image model were measured 1.8 times slower"
	default:
		c.Status = Note
		c.Found = "oneDNN's pool: what it took stays taken until the process ends"
		if err == nil {
			c.Found += fmt.Sprintf("; at most %v (TF_MKL_ALLOC_MAX_BYTES)", memory.Bytes(limit))
		}
		c.Fix = "to give memory back, for up to twice the step time: TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1"
	}
	return c
}
