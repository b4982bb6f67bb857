// Package bindings tests programs in modules of their own: a program may link another binding of TensorFlow, or messages
// with TensorFlow's names, beside this module.
package bindings

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

// official is the newest TensorFlow that the Go module proxy has.
const official = "github.com/tensorflow/tensorflow@v2.9.0+incompatible"

func TestBeside(t *testing.T) {
	generated := officialModule(t)
	for _, tag := range []string{"graft", "galeone", "official", "serving"} {
		t.Run(tag, func(t *testing.T) {
			args := []string{"test", "-count=1", "-tags", tag, "-run", "^TestBeside$"}
			if tag == "official" || tag == "serving" {
				args = append(args, "-mod=mod", "-modfile="+generated)
			}
			out := command(t, []string{"TF_CPP_MIN_LOG_LEVEL=2"}, "go", append(args, "./beside")...)
			require.Regexp(t, `^ok `, out)
			require.NotContains(t, out, "no tests")
		})
	}
}

func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	require.NoError(t, err, "%s %v\n%s%s", name, args, out, &errors)
	return string(out)
}

// officialModule returns a go.mod with the official binding. The module of TensorFlow has its messages as .proto
// files only, and says that its users generate the code; so do those of TensorFlow Serving.
func officialModule(t *testing.T) string {
	t.Helper()
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal([]byte(command(t, nil, "go", "mod", "download", "-json", official)), &module))
	dir := t.TempDir()
	generate(t, dir, []string{module.Dir, "apis"}, "tensorflow/core/protobuf/saved_model.proto",
		"tensorflow_serving/apis/predict.proto")
	edit := []string{"mod", "edit", "-require=" + official}
	for _, path := range []string{"github.com/tensorflow/tensorflow/tensorflow/go/core", "github.com/tensorflow/serving"} {
		folder := filepath.Join(dir, path)
		require.NoError(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte("module "+path+"\n\ngo 1.26\n"), 0o644))
		edit = append(edit, "-require="+path+"@v0.0.0", "-replace="+path+"="+folder)
	}
	file := filepath.Join(dir, "go.mod")
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	command(t, nil, "go", append(edit, file)...)
	return file
}

// generate writes the Go code of messages, and of those that they import, below dir, in folders with their import paths.
func generate(t *testing.T, dir string, sources []string, files ...string) {
	t.Helper()
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: sources}),
	}
	compiled, err := compiler.Compile(t.Context(), files...)
	require.NoError(t, err)
	var request pluginpb.CodeGeneratorRequest
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, protodesc.ToFileDescriptorProto(f))
		if !strings.HasPrefix(f.Path(), "google/") {
			request.FileToGenerate = append(request.FileToGenerate, f.Path())
		}
	}
	for _, f := range compiled {
		add(f)
	}
	plugin, err := protogen.Options{}.New(&request)
	require.NoError(t, err)
	for _, f := range plugin.Files {
		if f.Generate {
			internal_gengo.GenerateFile(plugin, f)
		}
	}
	for _, f := range plugin.Response().GetFile() {
		path := filepath.Join(dir, f.GetName())
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(f.GetContent()), 0o644))
	}
}
