package savedmodels

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"

	"steadyfit/internal/bounded"
)

func TestOpenExplainsWhatIsNoSavedModel(t *testing.T) {
	good, err := os.ReadFile("testdata/good/saved_model.pb")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		// files has the content of files by name. A name ending in "/" is a folder.
		files map[string]string
		open  string // path relative to the folder
		want  error
		says  string
	}{
		"missing folder":       {nil, "nothere", fs.ErrNotExist, "nothere"},
		"empty folder":         {nil, ".", ErrNotSavedModel, "it has no saved_model.pb; export one with scripts/export.py"},
		"text form":            {map[string]string{"saved_model.pbtxt": "x"}, ".", ErrNotSavedModel, "save it again, which writes the binary form"},
		"one folder up":        {map[string]string{"1/saved_model.pb": "x"}, ".", ErrNotSavedModel, "there is one in"},
		"versions":             {map[string]string{"9/saved_model.pb": "x", "10/saved_model.pb": "x"}, ".", ErrNotSavedModel, "/10: use that folder"},
		"the file itself":      {map[string]string{"saved_model.pb": "x"}, "saved_model.pb", ErrNotSavedModel, "use the folder that contains it"},
		"keras":                {map[string]string{"m.keras": "x"}, "m.keras", ErrNotSavedModel, "Keras model file"},
		"folder with keras":    {map[string]string{"m.keras": "x"}, ".", ErrNotSavedModel, "it contains m.keras"},
		"hdf5":                 {map[string]string{"m.h5": "x"}, "m.h5", ErrNotSavedModel, "HDF5"},
		"frozen graph":         {map[string]string{"frozen.pb": "x"}, "frozen.pb", ErrNotSavedModel, "frozen"},
		"checkpoint":           {map[string]string{"model.ckpt-3.index": "x"}, ".", ErrNotSavedModel, "contains a checkpoint"},
		"tflite":               {map[string]string{"m.tflite": "x"}, "m.tflite", ErrNotSavedModel, "TensorFlow Lite"},
		"another file":         {map[string]string{"m.txt": "x"}, "m.txt", ErrNotSavedModel, "a SavedModel is a folder"},
		"empty file":           {map[string]string{"saved_model.pb": ""}, ".", ErrNotSavedModel, "the file is empty"},
		"folder as file":       {map[string]string{"saved_model.pb/": ""}, ".", nil, "is a directory"},
		"text":                 {map[string]string{"saved_model.pb": "this is no protobuf"}, ".", ErrNotSavedModel, "damaged at byte"},
		"truncated":            {map[string]string{"saved_model.pb": string(good[:len(good)/2])}, ".", ErrNotSavedModel, "damaged at byte"},
		"no metagraph":         {map[string]string{"saved_model.pb": "\x08\x01"}, ".", ErrNotSavedModel, "no metagraph"},
		"no variables":         {map[string]string{"saved_model.pb": string(good)}, ".", ErrNotSavedModel, "variables/variables.index is missing"},
		"empty index":          {map[string]string{"saved_model.pb": string(good), "variables/variables.index": ""}, ".", ErrNotSavedModel, "is empty"},
		"no weights":           {map[string]string{"saved_model.pb": string(good), "variables/variables.index": "x"}, ".", ErrNotSavedModel, "0 of 1 files"},
		"damaged index":        {map[string]string{"saved_model.pb": string(good), "variables/variables.index": "x", "variables/variables.data-00000-of-00001": "x"}, ".", ErrNotSavedModel, "variables.index: damaged checkpoint"},
		"half of the weights":  {map[string]string{"saved_model.pb": string(good), "variables/variables.index": "x", "variables/variables.data-00000-of-00002": "x"}, ".", ErrNotSavedModel, "1 of 2 files"},
		"variables not a path": {map[string]string{"saved_model.pb": string(good), "variables": "x"}, ".", nil, "variables"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range c.files {
				path := filepath.Join(dir, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				if name[len(name)-1] == '/' {
					require.NoError(t, os.Mkdir(path, 0o755))
					continue
				}
				require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
			}
			m, err := Open(filepath.Join(dir, c.open))
			require.Error(t, err)
			require.Nil(t, m)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, dir, "it names the place")
		})
	}
}

func TestOpenWithoutPermission(t *testing.T) {
	dir := copyModel(t, "half")
	file := filepath.Join(dir, modelFile)
	require.NoError(t, os.Chmod(file, 0))
	if f, err := os.Open(file); err == nil {
		f.Close()
		t.Skip("this user reads files without permission (root); run the tests as another user")
	}
	_, err := Open(dir)
	require.ErrorIs(t, err, fs.ErrPermission)
}

// Opening a named pipe without a writer blocks.
func TestOpenPipe(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, modelFile), 0o600))
	_, err := Open(dir)
	require.ErrorContains(t, err, "not a regular file")
}

// A truncated model, or one with a changed byte, must not crash Open.
func TestDamagedModels(t *testing.T) {
	good, err := os.ReadFile("testdata/flatref/saved_model.pb")
	require.NoError(t, err)
	try := func(data []byte) {
		m, err := parse("damaged", data, maxMemoryBytes)
		if err == nil {
			m.settle("")
			require.NoError(t, m.WriteText(&bytes.Buffer{}))
			return
		}
		require.True(t, errors.Is(err, ErrNotSavedModel) || errors.Is(err, errTooLarge), "%v", err)
	}
	for n := 0; n < len(good); n += 61 {
		try(good[:n])
		changed := bytes.Clone(good)
		changed[n] ^= 0x55
		try(changed)
	}
}

// hostile returns a saved_model.pb of about size bytes whose graph repeats the encoded GraphDef
// unit.
func hostile(size int, unit []byte) []byte {
	graph := bytes.Repeat(unit, size/len(unit))
	meta := protowire.AppendBytes(protowire.AppendTag(nil, fieldGraph, protowire.BytesType), graph)
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldMetaGraphs, protowire.BytesType), meta)
}

func TestHostileFilesAreRefusedBeforeTheyTakeMemory(t *testing.T) {
	emptyNode := []byte{1<<3 | 2, 0}
	node, err := proto.Marshal(nodeDef("", "", []string{"", "", ""}, nil))
	require.NoError(t, err)
	inputs := append([]byte{1<<3 | 2, byte(len(node))}, node...)
	for name, c := range map[string]struct {
		unit []byte
		size int
	}{"empty nodes": {emptyNode, 100 << 20}, "empty inputs": {inputs, 80 << 20}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, modelFile), hostile(c.size, c.unit), 0o600))
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := processorTime(t)
			_, err := Open(dir)
			took := processorTime(t) - start
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, errTooLarge)
			// The total of all allocations is an upper bound of the peak.
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(c.size+(4<<20)))
			require.Less(t, took, 20*time.Second)
		})
	}
}

// processorTime returns the CPU time that this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The estimate must not be below the real memory, and not so far above it that real models are
// rejected.
func TestEstimate(t *testing.T) {
	for _, name := range []string{"good", "keras", "unsafe"} {
		data, err := os.ReadFile("testdata/" + name + "/saved_model.pb")
		require.NoError(t, err)
		low, high := int64(0), int64(maxMemoryBytes)
		for low+1 < high { // binary search for the estimate
			mid := (low + high) / 2
			if _, err := decode(data, mid); err != nil {
				require.ErrorIs(t, err, errTooLarge)
				low = mid
			} else {
				high = mid
			}
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		src, err := decode(data, maxMemoryBytes)
		runtime.GC()
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		runtime.KeepAlive(src)
		took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		require.Greater(t, high, took, name)
		require.Less(t, high, int64(len(data))*30, name)
	}
}

func TestSizeLimits(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, modelFile)
	f, err := os.Create(file)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(maxFileBytes+1)) // a sparse file
	require.NoError(t, f.Close())
	_, err = Open(dir)
	require.ErrorIs(t, err, errTooLarge)
	require.ErrorContains(t, err, "536870913 bytes")

	data, err := os.ReadFile("testdata/good/saved_model.pb")
	require.NoError(t, err)
	_, err = parse("good", data, 1<<10)
	require.ErrorIs(t, err, errTooLarge)
}

func TestNestingIsBounded(t *testing.T) {
	// AttrValue.func(10) -> NameAttrList.attr(2) -> value(2) -> AttrValue ...
	inner := []byte{}
	wrap := func(field protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
	}
	for range 5000 {
		inner = wrap(10, wrap(2, wrap(2, inner)))
	}
	node := wrap(1, wrap(5, wrap(2, inner)))
	_, err := parse("deep", hostile(len(node), node), maxMemoryBytes)
	require.ErrorIs(t, err, ErrNotSavedModel)
	require.ErrorContains(t, err, "nested more than 100 deep")
}

func TestMetaGraphChoice(t *testing.T) {
	other := trainer(nil)
	other.MetaInfoDef.Tags = []string{"serve", "tpu"}
	gpu := trainer(nil)
	gpu.MetaInfoDef.Tags = []string{"gpu"}
	m := read(t, gpu, trainer(nil), other)
	require.Equal(t, []string{"serve"}, m.Tags, "the first one tagged serve")
	require.Equal(t, []string{"note other-metagraphs"}, brief(m.Problems))
	require.Contains(t, m.Problems[0].Message, "'gpu', 'serve, tpu'")
	require.Equal(t, []string{"gpu"}, read(t, gpu).Tags)

	many := make([]*pb.MetaGraphDef, 65)
	for i := range many {
		many[i] = &pb.MetaGraphDef{}
	}
	data, err := proto.Marshal(&pb.SavedModel{MetaGraphs: many})
	require.NoError(t, err)
	_, err = parse("many", data, maxMemoryBytes)
	require.ErrorIs(t, err, errTooLarge)
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"flat", "flatref", "predictonly"} {
		data, err := os.ReadFile("testdata/" + name + "/saved_model.pb")
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte{})
	f.Add(hostile(1000, []byte{1<<3 | 2, 0}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m *Model
		var err error
		bounded.Allocates(t, 256<<20, func() { m, err = parse("fuzz", data, 64<<20) })
		if err != nil {
			require.Nil(t, m)
			require.True(t, errors.Is(err, ErrNotSavedModel) || errors.Is(err, errTooLarge), "%v", err)
			return
		}
		m.settle("")
		if m.Roles.Train != "" {
			m.Base = "known"
			bounded.Allocates(t, 256<<20, func() { _, err = m.features(data, m.Roles) })
			if err != nil {
				require.True(t, errors.Is(err, ErrNoFeatures) || errors.Is(err, errTooLarge), "%v", err)
			}
		}
		var first, second bytes.Buffer
		require.NoError(t, m.WriteText(&first))
		again, err := parse("fuzz", data, 64<<20)
		require.NoError(t, err)
		again.settle("")
		again.Base = m.Base
		require.NoError(t, again.WriteText(&second))
		require.Equal(t, first.String(), second.String())
		_, err = m.MarshalJSON()
		require.NoError(t, err)
	})
}
