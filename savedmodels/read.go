package savedmodels

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"steadyfit/internal/files"
	"steadyfit/internal/wire"
)

const (
	// maxFileBytes limits saved_model.pb, which has no weights. Real files have 10 KB to 50 MB.
	maxFileBytes = 512 << 20
	// maxMemoryBytes limits the memory of the decoded graph, which is estimated before
	// decoding. An empty node takes 2 bytes in the file and over a hundred in memory.
	maxMemoryBytes = 1 << 30
	// maxDepth is the limit of TensorFlow's protobuf readers for nested messages.
	maxDepth = 100

	modelFile = "saved_model.pb"
)

// Field numbers in saved_model.proto, meta_graph.proto and saved_object_graph.proto:
const (
	fieldMetaGraphs = 2 // of SavedModel

	fieldMetaInfo   = 1 // of MetaGraphDef
	fieldGraph      = 2
	fieldSaver      = 3
	fieldCollection = 4
	fieldSignature  = 5
	fieldAssetFile  = 6
	fieldObjects    = 7

	fieldTags      = 4 // of MetaInfoDef
	fieldFunctions = 2 // concrete_functions of SavedObjectGraph
)

// source is a decoded saved_model.pb without the unused parts.
type source struct {
	meta  *pb.MetaGraphDef // without its GraphDef and object graph
	graph *graph_go_proto.GraphDef
	// kinds has the kinds of a function's arguments; see argumentKinds.
	kinds map[string][]string
	// others are the tags of the metagraphs that are not used.
	others [][]string
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

// explainFile describes a file that was given instead of a SavedModel, and how to get a
// SavedModel.
func explainFile(path string) string {
	const export = "load it in Python and export a SavedModel with signatures (scripts/export.py)"
	switch ext := strings.ToLower(filepath.Ext(path)); {
	case filepath.Base(path) == modelFile:
		return "use the folder that contains it, " + filepath.Dir(path)
	case ext == ".keras":
		return "this is a Keras model file: " + export
	case ext == ".h5" || ext == ".hdf5":
		return "this is an HDF5 file of weights or of a Keras model: " + export
	case ext == ".tflite":
		return "this is a TensorFlow Lite model, which TensorFlow cannot train: export the model from which it was converted"
	case ext == ".onnx":
		return "this is an ONNX model: convert it to a SavedModel first"
	case ext == ".pb":
		return "this is a graph without variables, perhaps with its variables frozen into constants, which cannot be trained: " +
			"export a SavedModel from the code that made it"
	}
	return "a SavedModel is a folder with " + modelFile + " and variables/ in it"
}

// explainFolder says what a folder without saved_model.pb contains.
func explainFolder(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "the folder cannot be listed; check its permissions"
	}
	if versions, err := Versions(dir); err == nil && len(versions) > 0 && exists(filepath.Join(versions[len(versions)-1].Path, modelFile)) {
		return "there is one in " + versions[len(versions)-1].Path + ": use that folder"
	}
	for _, e := range entries {
		name := e.Name()
		switch ext := filepath.Ext(name); {
		case name == "saved_model.pbtxt":
			return "it has one in text form, " + name + ": load it in Python and save it again, which writes the binary form"
		case e.IsDir() && exists(filepath.Join(dir, name, modelFile)):
			return "there is one in " + filepath.Join(dir, name) + ": use that folder"
		case ext == ".keras" || ext == ".h5" || ext == ".tflite" || ext == ".onnx" || ext == ".pb":
			return "it contains " + name + ": " + explainFile(name)
		case ext == ".index" && strings.Contains(name, "ckpt") || name == "checkpoint":
			return "it contains a checkpoint, which has weights but no program: export a SavedModel from the code that made it"
		}
	}
	return "export one with scripts/export.py or tf.saved_model.save"
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// decode parses saved_model.pb and chooses the first metagraph with the tag "serve", or else
// the first one. It returns errTooLarge instead of using more than maxMemory bytes.
func decode(data []byte, maxMemory int64) (*source, error) {
	metas, tags, err := splitMetaGraphs(data)
	if err != nil {
		return nil, err
	}
	if len(metas) == 0 {
		return nil, fmt.Errorf("%w: it has no metagraph; the file is damaged or is not a SavedModel", ErrNotSavedModel)
	}
	chosen := chooseMetaGraph(tags)
	src := &source{
		meta: &pb.MetaGraphDef{}, graph: &graph_go_proto.GraphDef{}, kinds: map[string][]string{},
		others: slices.Delete(tags, chosen, chosen+1),
	}

	// The object graph describes Python objects and can be as large as the graph. To save
	// memory, its functions are decoded one by one.
	budget := &estimate{left: maxMemory, sizes: map[protoreflect.FullName]int64{}}
	var rest []byte
	for f := range fields(metas[chosen], &err) {
		switch f.Num {
		case fieldGraph:
			err = budget.decode(f.Value, src.graph, "graph")
		case fieldMetaInfo, fieldSaver, fieldCollection, fieldSignature, fieldAssetFile:
			rest = append(rest, f.Raw...)
		case fieldObjects:
			for f := range fields(f.Value, &err) {
				if f.Num == fieldFunctions {
					err = src.argumentKinds(f.Raw, budget)
				}
			}
		}
	}
	if err == nil {
		err = budget.decode(rest, src.meta, "metagraph")
	}
	return src, err
}

// chooseMetaGraph returns the index of the first metagraph with the tag "serve", or else 0.
func chooseMetaGraph(tags [][]string) int {
	return max(0, slices.IndexFunc(tags, func(t []string) bool { return slices.Contains(t, "serve") }))
}

// Graph returns the graph of the model as a serialized GraphDef. It reads saved_model.pb again, and
// returns ErrChanged if the file was replaced.
func (m *Model) Graph() ([]byte, error) {
	file, err := m.read()
	if err != nil {
		return nil, err
	}
	metas, tags, err := splitMetaGraphs(file)
	if err != nil {
		return nil, err
	}
	var graph []byte
	for f := range fields(metas[chooseMetaGraph(tags)], &err) {
		if f.Num == fieldGraph {
			graph = append(graph, f.Value...) // a repeated message is merged
		}
	}
	return graph, err
}

// splitMetaGraphs returns the encoded metagraphs, which are parts of data, and the tags of each
// metagraph.
func splitMetaGraphs(data []byte) (metas [][]byte, tags [][]string, err error) {
	for f := range fields(data, &err) {
		if f.Num != fieldMetaGraphs {
			continue
		}
		// Each metagraph costs a scan. Real models have one or two.
		if len(metas) == 64 {
			return nil, nil, fmt.Errorf("%w: it has more than 64 metagraphs", errTooLarge)
		}
		var own []string
		for f := range fields(f.Value, &err) {
			if f.Num != fieldMetaInfo {
				continue
			}
			for f := range fields(f.Value, &err) {
				if f.Num == fieldTags && len(own) < 64 {
					own = append(own, string(f.Value))
				}
			}
		}
		metas, tags = append(metas, f.Value), append(tags, own)
	}
	return metas, tags, err
}

// fields iterates over the fields of an encoded message until *err is set. It sets *err itself
// if the message is damaged.
func fields(data []byte, err *error) iter.Seq[wire.Field] {
	return wire.Fields(data, err, func(at int, cause error) error {
		return fmt.Errorf("%w: it is truncated or damaged at byte %d of a message (%w); copy or export the model again", ErrNotSavedModel, at, cause)
	})
}

// estimate adds up the memory that decoding will take and returns errTooLarge above a limit.
type estimate struct {
	left  int64
	sizes map[protoreflect.FullName]int64
}

// decode merges an encoded message into m if the memory suffices.
func (e *estimate) decode(data []byte, m proto.Message, what string) error {
	if err := e.message(m.ProtoReflect().Descriptor(), data, maxDepth); err != nil {
		return err
	}
	merge := proto.UnmarshalOptions{Merge: true, DiscardUnknown: true, RecursionLimit: maxDepth}
	if err := merge.Unmarshal(data, m); err != nil {
		return fmt.Errorf("%w: its %s is damaged: %w", ErrNotSavedModel, what, err)
	}
	return nil
}

func (e *estimate) take(n int64) error {
	if e.left -= n; e.left < 0 {
		return fmt.Errorf("%w: decoding it would take more than %d MiB of memory; "+
			"real models need far less; the file may be damaged or malicious", errTooLarge, maxMemoryBytes>>20)
	}
	return nil
}

// message adds the memory of an encoded message of type d and of the messages in it.
func (e *estimate) message(d protoreflect.MessageDescriptor, data []byte, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%w: its messages are nested more than %d deep; the file is damaged or malicious",
			ErrNotSavedModel, maxDepth)
	}
	err := e.take(e.size(d))
	if err != nil {
		return err
	}
	known := d.Fields()
	for f := range fields(data, &err) {
		// A growing list doubles its capacity, and the old array exists until it is copied.
		const element = 3 * 8
		switch fd := known.ByNumber(f.Num); {
		case fd == nil:
		case f.Typ != protowire.BytesType:
			if fd.IsList() {
				err = e.take(element)
			}
		case fd.Message() != nil:
			if err = e.take(element); err == nil {
				err = e.message(fd.Message(), f.Value, depth-1)
			}
		case fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind:
			err = e.take(int64(f.Size) + 3*element)
		default: // packed numbers, each at least one byte
			err = e.take(int64(f.Size) * element)
		}
	}
	return err
}

// size returns the memory of an empty message.
func (e *estimate) size(d protoreflect.MessageDescriptor) int64 {
	if s, ok := e.sizes[d.FullName()]; ok {
		return s
	}
	s := int64(128) // also the size of a map entry
	if mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil && !d.IsMapEntry() {
		if t := reflect.TypeOf(mt.Zero().Interface()); t.Kind() == reflect.Pointer {
			s = int64(t.Elem().Size()) + 16
		}
	}
	e.sizes[d.FullName()] = s
	return s
}
