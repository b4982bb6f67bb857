package savedmodels

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/testkit"
	"steadyfit/internal/tfproto"
)

func TestOpenExplainsWhatIsNoSavedModel(t *testing.T) {
	good, err := os.ReadFile("testdata/good/saved_model.pb")
	require.NoError(t, err)
	index, err := os.ReadFile("testdata/good/variables/variables.index")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		// files has the content of files by name. A name ending in "/" is a folder.
		files map[string]string
		open  string // path relative to the folder
		want  error
		says  string
	}{
		"missing folder": {nil, "nothere", fs.ErrNotExist, "nothere"},
		"empty folder":   {nil, ".", ErrNotSavedModel, "it has no saved_model.pb; export one with steadyfit-export"},
		"one folder up":  {map[string]string{"1/saved_model.pb": "x"}, ".", ErrNotSavedModel, "there is one in"},
		"versions": {map[string]string{"9/saved_model.pb": "x", "10/saved_model.pb": "x"}, ".", ErrNotSavedModel,
			"/10: use that folder"},
		"the file itself": {map[string]string{"saved_model.pb": "x"}, "saved_model.pb", ErrNotSavedModel,
			"a SavedModel is a folder"},
		"keras":          {map[string]string{"m.keras": "x"}, "m.keras", ErrNotSavedModel, "a Keras model"},
		"hdf5":           {map[string]string{"m.h5": "x"}, "m.h5", ErrNotSavedModel, "a Keras model"},
		"another file":   {map[string]string{"m.txt": "x"}, "m.txt", ErrNotSavedModel, "a SavedModel is a folder"},
		"empty file":     {map[string]string{"saved_model.pb": ""}, ".", ErrNotSavedModel, "the file is empty"},
		"folder as file": {map[string]string{"saved_model.pb/": ""}, ".", nil, "is a directory"},
		"text": {map[string]string{"saved_model.pb": "this is no protobuf"}, ".", ErrNotSavedModel,
			"truncated or damaged"},
		"truncated": {map[string]string{"saved_model.pb": string(good[:len(good)/2])}, ".", ErrNotSavedModel,
			"truncated or damaged"},
		"no metagraph": {map[string]string{"saved_model.pb": "\x08\x01"}, ".", ErrNotSavedModel, "no metagraph"},
		"no variables": {map[string]string{"saved_model.pb": string(good)}, ".", ErrNotSavedModel,
			"variables.index: no such file or directory; copy the whole folder"},
		"empty index": {map[string]string{"saved_model.pb": string(good), "variables/variables.index": ""}, ".",
			ErrNotSavedModel, "variables.index: damaged checkpoint"},
		"no weights": {map[string]string{"saved_model.pb": string(good), "variables/variables.index": string(index)}, ".",
			ErrNotSavedModel, "variables.data-00000-of-00001: no such file or directory; copy the whole folder"},
		"damaged index": {map[string]string{"saved_model.pb": string(good), "variables/variables.index": "x",
			"variables/variables.data-00000-of-00001": "x"}, ".", ErrNotSavedModel, "variables.index: damaged checkpoint"},
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

// A file of a model is neither a link to a file elsewhere nor something that never ends.
func TestFilesOfModel(t *testing.T) {
	for name, c := range map[string]struct {
		file, target string // target is that of a link; a pipe if it is empty
		want         string // in the error; empty if the model can be opened
	}{
		"asset":         {"assets/a.txt", "/etc/passwd", "a symbolic link to /etc/passwd"},
		"extra":         {"assets.extra/a.txt", "../../secret", "a symbolic link to ../../secret"},
		"endless":       {"assets/a.txt", "/dev/zero", "a symbolic link to /dev/zero"},
		"pipe":          {"assets/a.txt", "", "is a pipe"},
		"folder":        {"assets/a", "/etc", "a symbolic link to /etc"},
		"own folder":    {"assets/a", "../variables", "a symbolic link to ../variables"},
		"debug":         {"debug/saved_model_debug_info.pb", "", "is a pipe"},
		"weights":       {"variables/variables.data-00000-of-00001", "/dev/zero", "a symbolic link"},
		"index":         {"variables/variables.index", "/etc/passwd", "a symbolic link"},
		"program":       {modelFile, "/etc/passwd", "a symbolic link"},
		"nowhere":       {"assets/a.txt", "nowhere", "a symbolic link to nowhere"},
		"itself":        {"assets/a.txt", "a.txt", "a symbolic link to a.txt"},
		"in the folder": {"assets/a.txt", "../variables/variables.index", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t, "half")
			path := filepath.Join(dir, c.file)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				require.NoError(t, err)
			}
			if c.target == "" {
				require.NoError(t, syscall.Mkfifo(path, 0o600))
			} else {
				require.NoError(t, os.Symlink(c.target, path))
			}
			m, err := Open(dir)
			if c.want == "" {
				require.NoError(t, err)
				require.Equal(t, []string{c.file, modelFile, "variables/variables.data-00000-of-00001", "variables/variables.index"},
					m.Files)
			} else {
				require.ErrorIs(t, err, ErrNotSavedModel)
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, path)
			}
		})
	}
}

// A truncated model, or one with a changed byte, must not crash Open.
func TestDamagedModels(t *testing.T) {
	good, err := os.ReadFile("testdata/flatref/saved_model.pb")
	require.NoError(t, err)
	try := func(data []byte) {
		m, err := parse("damaged", data, nil)
		if err == nil {
			m.settle()
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
	meta := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), graph)
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), meta)
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
	require.ErrorContains(t, err, "134217729 bytes")

}

//lane:skip race (one goroutine)
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
	_, err := parse("deep", hostile(len(node), node), nil)
	require.ErrorIs(t, err, ErrNotSavedModel)
	require.ErrorContains(t, err, "damaged")
}

func TestMetaGraphChoice(t *testing.T) {
	other := trainer(nil)
	other.MetaInfoDef.Tags = []string{"serve", "tpu"}
	gpu := trainer(nil)
	gpu.MetaInfoDef.Tags = []string{"gpu"}
	m := read(t, gpu, trainer(nil), other)
	require.Equal(t, []string{"serve"}, m.Tags, "the first one tagged serve")
	require.Equal(t, []string{"gpu"}, read(t, gpu).Tags)
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
		testkit.Allocates(t, 256<<20, func() { m, err = parse("fuzz", data, nil) })
		if err != nil {
			require.Nil(t, m)
			require.True(t, errors.Is(err, ErrNotSavedModel) || errors.Is(err, errTooLarge), "%v", err)
			return
		}
		m.settle()
		if m.Roles.Train != "" {
			m.Base = "known"
			src, decoded := decode(data, m.Tags)
			require.NoError(t, decoded)
			testkit.Allocates(t, 256<<20, func() { _, err = m.features(src) })
			if err != nil {
				require.True(t, errors.Is(err, ErrNoFeatures) || errors.Is(err, errTooLarge), "%v", err)
			}
		}
		var first, second bytes.Buffer
		require.NoError(t, m.WriteText(&first))
		again, err := parse("fuzz", data, nil)
		require.NoError(t, err)
		again.settle()
		again.Base = m.Base
		require.NoError(t, again.WriteText(&second))
		require.Equal(t, first.String(), second.String())
		_, err = m.MarshalJSON()
		require.NoError(t, err)
	})
}

// Programs made from a decoded graph keep what this module does not know.
func TestUnknownFieldsOfAGraphAreKept(t *testing.T) {
	meta := trainer(nil)
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
	meta.GraphDef.Node[0].ProtoReflect().SetUnknown(unknown)
	data, err := proto.Marshal(&tfproto.SavedModel{MetaGraphs: []*tfproto.MetaGraphDef{meta}})
	require.NoError(t, err)
	src, err := decode(data, nil)
	require.NoError(t, err)
	require.Equal(t, unknown, []byte(src.graph.Node[0].ProtoReflect().GetUnknown()))
}
