package savedmodels

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/files"
	"steadyfit/internal/tfproto"
	"steadyfit/option"
)

const (
	// maxFileBytes limits saved_model.pb, which has no weights. Real files have 10 KB to 50 MB.
	// Decoded, they take about ten times as much memory.
	maxFileBytes = 128 << 20
	// maxDepth is the limit of TensorFlow's protobuf readers for nested messages.
	maxDepth = 100

	modelFile = "saved_model.pb"
)

// source is a decoded saved_model.pb without the unused parts.
type source struct {
	meta  *tfproto.MetaGraphDef // without its graph and its object graph
	graph *tfproto.GraphDef
	tags  [][]string // of all metagraphs
}

// readFile reads a regular file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	data, err := files.Read(path, limit)
	if errors.Is(err, files.ErrTooLarge) {
		return nil, fmt.Errorf("%w: %w", errTooLarge, err)
	}
	return data, err
}

// readModel reads DIR/saved_model.pb. If the file is missing, the error describes the content
// of the folder.
func readModel(dir string) ([]byte, error) {
	info, err := os.Stat(dir)
	var cause *fs.PathError
	if errors.As(err, &cause) && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("SavedModel %w", files.Missing(dir, cause.Err))
	}
	if err != nil {
		return nil, fmt.Errorf("SavedModel %s: %w", dir, err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s: %w: expected a folder, found a file; %s", dir, ErrNotSavedModel, explainFile(dir))
	}
	path := filepath.Join(dir, modelFile)
	data, err := readFile(path, maxFileBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w: it has no %s; %s", dir, ErrNotSavedModel, modelFile, explainFolder(dir))
	case err != nil:
		return nil, fmt.Errorf("SavedModel %s: %w", dir, err)
	case len(data) == 0:
		return nil, fmt.Errorf("%s: %w: the file is empty; export or copy the model again", path, ErrNotSavedModel)
	}
	return data, nil
}

// listFiles returns the names of the files in the folder of a model, with slashes. Anything but a regular
// file in the folder is an error: a link could lead to any file of the system, and reading a pipe or a
// device may never end.
func listFiles(dir string) (names []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("SavedModel %s: %w", dir, err)
	}
	defer root.Close()
	return names, fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if info, err := root.Stat(name); err != nil || !info.Mode().IsRegular() {
			what := "a pipe, a socket or a device"
			if target, err := root.Readlink(name); err == nil {
				what = "a symbolic link to " + target
			}
			return fmt.Errorf("%w: %s is %s, and not a regular file in the folder of the model; replace it with a copy of "+
				"the file, or remove it", ErrNotSavedModel, filepath.Join(dir, name), what)
		}
		names = append(names, name)
		return nil
	})
}

// explainFile says how to get a SavedModel instead of a file.
func explainFile(path string) string {
	if ext := strings.ToLower(filepath.Ext(path)); ext == ".keras" || ext == ".h5" {
		return "this is a Keras model or its weights: load it in Python and export a SavedModel with signatures " +
			"(steadyfit-export)"
	}
	return "a SavedModel is a folder with " + modelFile + " and variables/ in it"
}

// explainFolder says how to get a SavedModel instead of a folder without one.
func explainFolder(dir string) string {
	if versions, err := Versions(dir); err == nil && len(versions) > 0 {
		return "there is one in " + versions[len(versions)-1].Path + ": use that folder"
	}
	return "export one with steadyfit-export or tf.saved_model.save"
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// decode parses saved_model.pb and chooses a metagraph (chooseMetaGraph). It leaves out the object graph, which
// describes Python objects and can be as large as the graph.
func decode(data []byte, wanted []string) (*source, error) {
	file := &tfproto.SavedModel{}
	options := proto.UnmarshalOptions{RecursionLimit: maxDepth}
	if err := options.Unmarshal(data, file); err != nil {
		return nil, fmt.Errorf("%w: it is truncated or damaged; copy or export the model again", ErrNotSavedModel)
	}
	if len(file.MetaGraphs) == 0 {
		return nil, fmt.Errorf("%w: it has no metagraph; the file is damaged or is not a SavedModel", ErrNotSavedModel)
	}
	var tags [][]string
	for _, m := range file.MetaGraphs {
		tags = append(tags, m.GetMetaInfoDef().GetTags())
	}
	chosen, err := chooseMetaGraph(tags, wanted)
	if err != nil {
		return nil, err
	}
	meta := file.MetaGraphs[chosen]
	meta.ProtoReflect().SetUnknown(nil)
	graph := meta.GetGraphDef()
	if graph == nil {
		graph = &tfproto.GraphDef{}
	}
	meta.GraphDef = nil
	return &source{meta: meta, graph: graph, tags: tags}, nil
}

// chooseMetaGraph returns the index of the metagraph with these tags in any order. Without wanted tags, it is the
// one with the tag serve alone, or else the first one with that tag, or else the only one.
func chooseMetaGraph(tags [][]string, wanted []string) (int, error) {
	has := func(want []string) int {
		return slices.IndexFunc(tags, func(t []string) bool {
			return slices.Equal(slices.Sorted(slices.Values(t)), slices.Sorted(slices.Values(want)))
		})
	}
	i := has(wanted)
	if len(wanted) == 0 {
		if i = has([]string{"serve"}); i < 0 {
			i = slices.IndexFunc(tags, func(t []string) bool { return slices.Contains(t, "serve") })
		}
		if len(tags) == 1 {
			i = 0
		}
	}
	if i >= 0 {
		return i, nil
	}
	return 0, &option.Error{Option: "Config.Tags", Value: cmp.Or(strings.Join(wanted, ","), "serve"),
		Reason: "no metagraph of the model has these tags", Fix: "choose one of " + tagSets(tags), Err: ErrNotSavedModel}
}

func tagSets(tags [][]string) string {
	var sets []string
	for _, t := range tags {
		sets = append(sets, strings.Join(t, ","))
	}
	return strings.Join(sets, "; ")
}

// source reads saved_model.pb again, and returns ErrChanged if the file was replaced.
func (m *Model) source() (*source, error) {
	file, err := m.read()
	if err != nil {
		return nil, err
	}
	return decode(file, m.Tags)
}

// Graph returns the graph of the model as a serialized GraphDef. It reads saved_model.pb again, and
// returns ErrChanged if the file was replaced.
func (m *Model) Graph() ([]byte, error) {
	src, err := m.source()
	if err != nil {
		return nil, err
	}
	return proto.Marshal(src.graph)
}
