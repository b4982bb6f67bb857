package savedmodels

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"steadyfit/internal/files"
)

const (
	// MaxFileBytes bounds the saved_model.pb that Open reads. Weights are not
	// in it (they are in variables/), so that real ones take 10 KB to 50 MB.
	MaxFileBytes = 512 << 20
	// MaxMemoryBytes bounds what the decoded graph may take, by an estimate
	// made before decoding: an empty node takes 2 bytes in the file and over
	// a hundred in memory.
	MaxMemoryBytes = 1 << 30
	// maxDepth is the nesting that TensorFlow's own protobuf readers accept.
	maxDepth = 100
	// maxMetadataBytes bounds assets.extra/steadyfit.json.
	maxMetadataBytes = 1 << 20

	modelFile    = "saved_model.pb"
	metadataFile = "assets.extra/steadyfit.json"
)

// The numbers of the fields of SavedModel and MetaGraphDef, from saved_model.proto
// and meta_graph.proto.
const (
	fieldMetaGraphs = 2
	fieldMetaInfo   = 1
	fieldGraph      = 2
	fieldSaver      = 3
	fieldCollection = 4
	fieldSignature  = 5
	fieldAssetFile  = 6
	fieldObjects    = 7
	// fieldFunctions is SavedObjectGraph.concrete_functions.
	fieldFunctions = 2
)

// source is a decoded saved_model.pb, less what nothing here needs.
type source struct {
	meta  *pb.MetaGraphDef // without its GraphDef and object graph
	graph *graph_go_proto.GraphDef
	// kinds are those of the arguments, by function, where one is a composite tensor.
	kinds map[string][]string
	// others are the tag sets of the metagraphs that were not chosen.
	others [][]string
}

// readFile reads a regular file of at most max bytes.
func readFile(path string, max int64) ([]byte, error) {
	data, err := files.Read(path, max)
	if errors.Is(err, files.ErrTooLarge) {
		return nil, fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return data, err
}

// readModel reads DIR/saved_model.pb, and explains what a folder or file
// without one seems to be.
func readModel(dir string) ([]byte, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("SavedModel %s: %w", dir, err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s: %w: expected a folder, found a file; %s", dir, ErrNotSavedModel, explainFile(dir))
	}
	path := filepath.Join(dir, modelFile)
	data, err := readFile(path, MaxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: it has no %s; %s", dir, ErrNotSavedModel, modelFile, explainFolder(dir))
	}
	if err != nil {
		return nil, fmt.Errorf("SavedModel %s: %w", dir, err)
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("%s: %w: the file is empty; export or copy the model again", path, ErrNotSavedModel)
	}
	return data, nil
}

// explainFile says what to do with a file given in place of a SavedModel.
func explainFile(path string) string {
	const export = "load it in Python and export a SavedModel with signatures (scripts/export.py)"
	switch ext := strings.ToLower(filepath.Ext(path)); {
	case filepath.Base(path) == modelFile:
		return "give the folder that holds it, " + filepath.Dir(path)
	case ext == ".keras":
		return "this is a Keras model file: " + export
	case ext == ".h5" || ext == ".hdf5":
		return "this is an HDF5 file of weights or of a Keras model: " + export
	case ext == ".tflite":
		return "this is a TensorFlow Lite model, which TensorFlow cannot train: export the model that it was converted from"
	case ext == ".onnx":
		return "this is an ONNX model: convert it to a SavedModel first"
	case ext == ".pb":
		return "this is a bare graph, often one with its variables frozen into constants, which cannot be trained: " +
			"export a SavedModel from the code that made it"
	}
	return "a SavedModel is a folder with " + modelFile + " and variables/ in it"
}

// explainFolder says what a folder without saved_model.pb seems to be.
func explainFolder(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "and the folder cannot be listed; check its permissions"
	}
	for _, e := range entries {
		name := e.Name()
		switch ext := filepath.Ext(name); {
		case name == "saved_model.pbtxt":
			return "it has one in text form, " + name + ": load it in Python and save it again, which writes the binary form"
		case e.IsDir() && exists(filepath.Join(dir, name, modelFile)):
			return "there is one in " + filepath.Join(dir, name) + ": give that folder"
		case ext == ".keras" || ext == ".h5" || ext == ".tflite" || ext == ".onnx" || ext == ".pb":
			return "there is " + name + " in it: " + explainFile(name)
		case ext == ".index" && strings.Contains(name, "ckpt") || name == "checkpoint":
			return "it holds a checkpoint, which has weights and no program: export a SavedModel from the code that made it"
		}
	}
	return "export one with scripts/export.py or tf.saved_model.save"
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// decode parses saved_model.pb and picks the metagraph to use: the first one
// tagged "serve", else the first. It fails rather than decode what would take
// more than maxMemory bytes.
func decode(data []byte, maxMemory int64) (*source, error) {
	metas, err := splitMetaGraphs(data)
	if err != nil {
		return nil, err
	}
	if len(metas) == 0 {
		return nil, fmt.Errorf("%w: it has no metagraph; the file is damaged or of another kind", ErrNotSavedModel)
	}
	chosen, tags := 0, make([][]string, len(metas))
	for i := len(metas) - 1; i >= 0; i-- {
		if tags[i], err = tagsOf(metas[i]); err != nil {
			return nil, err
		}
		for _, t := range tags[i] {
			if t == "serve" {
				chosen = i
			}
		}
	}
	src := &source{meta: &pb.MetaGraphDef{}, graph: &graph_go_proto.GraphDef{}, kinds: map[string][]string{}}
	for i, t := range tags {
		if i != chosen {
			src.others = append(src.others, t)
		}
	}

	// The object graph describes Python objects, and can be as large as the
	// graph; it and what is unknown stays behind, but for composite arguments.
	budget := &estimate{left: maxMemory, sizes: map[protoreflect.FullName]int64{}}
	var rest []byte
	merge := proto.UnmarshalOptions{Merge: true, DiscardUnknown: true, RecursionLimit: maxDepth}
	err = fields(metas[chosen], func(num protowire.Number, value, raw []byte) error {
		switch num {
		case fieldGraph:
			if err := budget.message(src.graph.ProtoReflect().Descriptor(), value, maxDepth); err != nil {
				return err
			}
			if err := merge.Unmarshal(value, src.graph); err != nil {
				return fmt.Errorf("%w: its graph is damaged: %w", ErrNotSavedModel, err)
			}
		case fieldMetaInfo, fieldSaver, fieldCollection, fieldSignature, fieldAssetFile:
			rest = append(rest, raw...)
		case fieldObjects:
			return fields(value, func(num protowire.Number, _, raw []byte) error {
				if num != fieldFunctions {
					return nil
				}
				return src.argumentKinds(raw, budget, merge)
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := budget.message(src.meta.ProtoReflect().Descriptor(), rest, maxDepth); err != nil {
		return nil, err
	}
	if err := merge.Unmarshal(rest, src.meta); err != nil {
		return nil, fmt.Errorf("%w: its metagraph is damaged: %w", ErrNotSavedModel, err)
	}
	return src, nil
}

// splitMetaGraphs returns the encoded metagraphs; they share data's memory.
func splitMetaGraphs(data []byte) ([][]byte, error) {
	var metas [][]byte
	err := fields(data, func(num protowire.Number, value, _ []byte) error {
		if num == fieldMetaGraphs {
			// Real models have one or two; each costs a scan.
			if len(metas) == 64 {
				return fmt.Errorf("%w: it has more than 64 metagraphs", ErrTooLarge)
			}
			metas = append(metas, value)
		}
		return nil
	})
	return metas, err
}

// tagsOf reads the tags of an encoded metagraph without decoding the rest.
func tagsOf(meta []byte) ([]string, error) {
	const fieldTags = 4
	var tags []string
	err := fields(meta, func(num protowire.Number, value, _ []byte) error {
		if num != fieldMetaInfo {
			return nil
		}
		return fields(value, func(num protowire.Number, value, _ []byte) error {
			if num == fieldTags && len(tags) < 64 {
				tags = append(tags, string(value))
			}
			return nil
		})
	})
	return tags, err
}

// fields calls f for each length-delimited field of an encoded message, with
// the field's content, and the content together with its key and length.
func fields(data []byte, f func(num protowire.Number, value, raw []byte) error) error {
	for rest := data; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return damaged(len(data)-len(rest), n)
		}
		m := protowire.ConsumeFieldValue(num, typ, rest[n:])
		if m < 0 {
			return damaged(len(data)-len(rest), m)
		}
		if typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(rest[n:])
			if err := f(num, value, rest[:n+m]); err != nil {
				return err
			}
		}
		rest = rest[n+m:]
	}
	return nil
}

func damaged(at, code int) error {
	return fmt.Errorf("%w: it breaks off or is damaged at byte %d of a message (%w); copy or export the model again",
		ErrNotSavedModel, at, protowire.ParseError(code))
}

// estimate predicts what decoding takes in memory, and fails when that is more
// than what is left.
type estimate struct {
	left  int64
	sizes map[protoreflect.FullName]int64
}

func (e *estimate) take(n int64) error {
	if e.left -= n; e.left < 0 {
		return fmt.Errorf("%w: decoding it would take more than %d MiB of memory; "+
			"no real model comes near this, so suspect the file", ErrTooLarge, MaxMemoryBytes>>20)
	}
	return nil
}

// message adds what a message of the given type takes, and all that it holds.
func (e *estimate) message(d protoreflect.MessageDescriptor, data []byte, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%w: its messages are nested more than %d deep; the file is damaged or made to harm",
			ErrNotSavedModel, maxDepth)
	}
	if err := e.take(e.size(d)); err != nil {
		return err
	}
	known := d.Fields()
	for rest := data; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return damaged(len(data)-len(rest), n)
		}
		m := protowire.ConsumeFieldValue(num, typ, rest[n:])
		if m < 0 {
			return damaged(len(data)-len(rest), m)
		}
		if fd := known.ByNumber(num); fd != nil {
			// A list doubles its room as it grows, and pays for old and new.
			const element = 3 * 8
			switch {
			case typ != protowire.BytesType:
				if fd.IsList() {
					if err := e.take(element); err != nil {
						return err
					}
				}
			case fd.Message() != nil:
				if err := e.take(element); err != nil {
					return err
				}
				value, _ := protowire.ConsumeBytes(rest[n:])
				if err := e.message(fd.Message(), value, depth-1); err != nil {
					return err
				}
			case fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind:
				if err := e.take(int64(m) + 3*element); err != nil {
					return err
				}
			default: // packed numbers, of a byte or more each
				if err := e.take(int64(m) * element); err != nil {
					return err
				}
			}
		}
		rest = rest[n+m:]
	}
	return nil
}

// size is what an empty message of the type takes in memory.
func (e *estimate) size(d protoreflect.MessageDescriptor) int64 {
	if s, ok := e.sizes[d.FullName()]; ok {
		return s
	}
	s := int64(128) // also what an entry of a map takes
	if mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil && !d.IsMapEntry() {
		if t := reflect.TypeOf(mt.Zero().Interface()); t.Kind() == reflect.Pointer {
			s = int64(t.Elem().Size()) + 16
		}
	}
	e.sizes[d.FullName()] = s
	return s
}
