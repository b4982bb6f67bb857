package savedmodels

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/manifest"
	"steadyfit/internal/tfproto"
)

// The expected text is the output of saved_model_cli, recorded by testdata/make.py.
func TestSignaturesPrintAsSavedModelCLI(t *testing.T) {
	for _, name := range models(t) {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile("testdata/" + name + ".show")
			require.NoError(t, err)
			var got bytes.Buffer
			open(t, name).writeSignatures(&got)
			require.Equal(t, string(want), got.String())
		})
	}
}

func TestWriteText(t *testing.T) {
	for _, name := range models(t) {
		t.Run(name, func(t *testing.T) {
			var text, signatures bytes.Buffer
			m := open(t, name)
			require.NoError(t, m.WriteText(&text))
			m.writeSignatures(&signatures)
			rest, ok := bytes.CutSuffix(text.Bytes(), signatures.Bytes())
			require.True(t, ok)
			golden(t, "testdata/"+name+".inspect", rest)
		})
	}
}

// The variable check agrees with TensorFlow's first step after loading the model, whose result
// testdata/make.py recorded.
func TestVariableCheckAgreesWithTensorFlow(t *testing.T) {
	for _, name := range models(t) {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile("testdata/" + name + ".step")
			require.NoError(t, err)
			kind, variable, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
			m := open(t, name)
			var found []string
			for _, p := range m.Problems {
				if p.Code == codeOptimizerNotRestored || p.Code == codeVariableNotRestored {
					found = append(found, p.Message)
				}
			}
			switch kind {
			case "FailedPreconditionError", "InternalError":
				require.NotEmpty(t, found)
				if variable != "" {
					require.Contains(t, found[0], variable)
				}
			default:
				require.Empty(t, found)
			}
		})
	}
}

func TestProblems(t *testing.T) {
	for name, want := range map[string][]string{
		"good":      {},
		"reserved":  {},
		"keras":     {},
		"ondevice":  {},
		"twoinputs": {},
		"batchhash": {},
		// Both have vocabularies in files. The second one reads another file instead.
		"vocabulary": {},
		"foreign":    {"error unsafe-op InitializeTableFromTextFileV2"},
		"badreserved": {
			"error reserved-input train.group_size", "error reserved-input train.learning_rate",
			"error reserved-input train.seed",
		},
		"trap":        {"error optimizer-not-restored train"},
		"flat":        {"error optimizer-not-restored train"},
		"flatref":     {"error optimizer-not-restored train"},
		"flatinit":    {"warning state-not-saved train"},
		"weightsonly": {},
		"predictonly": {"error no-train-signature"},
		"unsafe": {
			"error unsafe-op DatasetFromGraph", "error unsafe-op EagerPyFunc", "error unsafe-op ReadFile",
			"error unsafe-op SaveV2", "error unsafe-op WriteFile",
		},
		"half": {
			"warning fixed-batch train.x", "warning fixed-batch train.y",
		},
		"oddinputs": {
			"error unsupported-type train.wave",
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, want, brief(open(t, name).Problems))
		})
	}
}

func TestRoles(t *testing.T) {
	for name, want := range map[string]Roles{
		"good": {
			Train: "train", TrainN: "train_n", TrainXLA: "train_xla", Evaluate: "evaluate", Predict: "predict",
			SetLearningRate: "set_learning_rate",
		},
		"keras":       {Train: "train", Predict: "serving_default"},
		"twoinputs":   {Train: "train", Gradients: "gradients", Apply: "apply"},
		"ondevice":    {Train: "learn", Predict: "infer"},
		"weightsonly": {Train: "learn", Predict: "infer"},
		"predictonly": {Predict: "serving_default"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, want, open(t, name).Roles)
		})
	}
}

func TestOpen(t *testing.T) {
	m := open(t, "good")
	require.Equal(t, "testdata/good", m.Dir)
	require.Equal(t, []string{"serve"}, m.Tags)
	require.Equal(t, "2.21.0", m.TensorFlowVersion)
	require.Len(t, m.Hash, 64)
	require.Equal(t, []string{"evaluate", "predict", "set_learning_rate", "train", "train_n", "train_xla"},
		m.signatureNames())
	require.Equal(t, &Saver{"saver_filename:0", "StatefulPartitionedCall_6:0", "StatefulPartitionedCall_7"}, m.Saver)
	require.Nil(t, m.Metadata)

	s, err := m.Signature("train_n")
	require.NoError(t, err)
	require.Equal(t, "tensorflow/serving/predict", s.Method)
	require.Equal(t, Tensor{Name: "x", Op: "train_n_x:0", DType: dtype.Float32, Shape: []int64{-1, -1, 3}}, s.Inputs[0])
	require.Equal(t, Tensor{Name: "mae", Op: "StatefulPartitionedCall_4:1", DType: dtype.Float32, Shape: []int64{}},
		s.Outputs[1])

	float := func(name, key string, trained, weight bool, shape ...int64) Variable {
		return Variable{Name: name, DType: dtype.Float32, Shape: append([]int64{}, shape...), Restored: true, Saved: true,
			Trained: trained, Weight: weight, Key: key + keySuffix}
	}
	require.Equal(t, []Variable{
		float("b", "b", true, true, 1), float("b_momentum", "slots/1", true, false, 1), float("rate", "rate", false, false),
		float("w", "w", true, true, 3, 1), float("w_momentum", "slots/0", true, false, 3, 1),
	}, m.Variables)
	require.EqualValues(t, 12, m.Variables[3].Bytes())
}

// train_n uses its variables only inside a While loop.
func TestVariablesInsideLoops(t *testing.T) {
	m := open(t, "good")
	require.Equal(t, []string{"b", "b_momentum", "w", "w_momentum"},
		m.names(union(m.known.signature["train_n"].written, m.known.signature["train_n"].updated)))
	require.Equal(t, []string{"b", "b_momentum", "rate", "w", "w_momentum"}, m.names(m.known.signature["train_n"].read))
	require.Equal(t, []string{"b", "w"}, m.names(m.known.signature["predict"].read))
	require.Empty(t, m.known.signature["predict"].written)
}

func TestSignatureNotFound(t *testing.T) {
	_, err := open(t, "good").Signature("trian")
	require.ErrorIs(t, err, ErrNoSignature)
	require.ErrorContains(t, err, `"trian"; there are evaluate, predict, set_learning_rate, train`)
	_, err = (&Model{Dir: "d"}).Signature("train")
	require.ErrorIs(t, err, ErrNoSignature)
}

func TestSignatureHelpers(t *testing.T) {
	names := func(ts []Tensor) (out []string) {
		for _, t := range ts {
			out = append(out, t.Name)
		}
		return out
	}
	s, err := open(t, "reserved").Signature("train")
	require.NoError(t, err)
	require.Equal(t, []string{"features", "y"}, names(s.DataInputs()))
	require.Equal(t, "train_seed:0", s.Input(contract.InputSeed).Op)
	require.Nil(t, s.Input(contract.InputGroupSize))
	require.Equal(t, []string{"loss"}, names(s.Metrics()), "grads_finite and global_step are no metrics")
	s, err = open(t, "good").Signature("evaluate")
	require.NoError(t, err)
	require.Equal(t, []string{"loss", "mae"}, names(s.Metrics()))
	s, err = open(t, "good").Signature("predict")
	require.NoError(t, err)
	require.Empty(t, s.Metrics())
}

func TestCheckTrainable(t *testing.T) {
	require.NoError(t, open(t, "good").CheckTrainable(false))

	unsafe := open(t, "unsafe")
	err := unsafe.CheckTrainable(false)
	require.ErrorAs(t, err, new(*NotTrainableError))
	require.ErrorIs(t, err, ErrUnsafeOps)
	require.ErrorContains(t, err, "ReadFile reads files: run by signature train, at while/cond/ReadFile in function")
	require.ErrorContains(t, err, "allow unsafe operations")
	require.NoError(t, unsafe.CheckTrainable(true))

	trap := open(t, "trap").CheckTrainable(true)
	require.NotErrorIs(t, trap, ErrUnsafeOps)
	require.ErrorContains(t, trap, "6 variables that training uses: sequential/dense/bias")
	var typed *NotTrainableError
	require.ErrorAs(t, trap, &typed)
	require.Equal(t, codeOptimizerNotRestored, typed.Problems[0].Code)
}

func TestMarshalJSON(t *testing.T) {
	m := open(t, "half")
	data, err := json.MarshalIndent(m, "", "  ")
	require.NoError(t, err)
	golden(t, "testdata/half.json", append(data, '\n'))

	data, err = json.Marshal(open(t, "oddinputs").Signatures[0].Inputs[0])
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"any","op":"train_any:0","dtype":"float32","shape":null}`, string(data))

	data, err = json.Marshal(read(t, &tfproto.MetaGraphDef{}))
	require.NoError(t, err)
	require.NotContains(t, string(data), `"signatures":null`)
	require.Contains(t, string(data), `"saver":null`)
}

func TestMetadata(t *testing.T) {
	copied := copyModel(t, "good")
	file := filepath.Join(copied, filepath.FromSlash(manifest.NotesFile))
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	write := func(s string) *Model {
		require.NoError(t, os.WriteFile(file, []byte(s), 0o644))
		m, err := Open(copied)
		require.NoError(t, err)
		return m
	}
	m := write(`{"format":1,"exporter":"0.1.0","inputs":{"x":{"dtype":"float32","shape":[-1,3],"range":[0,16]}},
		"class_names":["a","b"],"metrics":["mae"],"compiled":{"train_xla":{"batch":4}},"new_in_a_later_version":{}}`)
	require.Empty(t, m.Problems)
	require.Equal(t, "0.1.0", m.Metadata.Exporter)
	require.Equal(t, &[2]float64{0, 16}, m.Metadata.Inputs["x"].Range)
	require.Equal(t, []string{"a", "b"}, m.Metadata.ClassNames)
	require.EqualValues(t, 4, m.Metadata.Compiled["train_xla"]["batch"])

	write(`{"saved_model_sha256":"` + m.Hash + `"}`)
	graph := filepath.Join(copied, modelFile)
	sound, err := os.ReadFile(graph)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(graph, append(bytes.Clone(sound), 0x12, 0), 0o644)) // adds an empty metagraph
	_, err = Open(copied)
	require.ErrorIs(t, err, ErrNotSavedModel)
	require.ErrorContains(t, err, "was damaged or replaced since it was exported")
	require.NoError(t, os.WriteFile(graph, sound, 0o644))

	for _, bad := range []string{`{"inputs":3}`, `{`, ``, `null`, `{"format":2}`} {
		m := write(bad)
		require.Nil(t, m.Metadata)
		require.Equal(t, []string{"warning metadata-unreadable assets.extra/steadyfit.json"}, brief(m.Problems), bad)
		require.NoError(t, m.CheckTrainable(false))
	}
}

// copyModel copies a model of testdata to a temporary folder.
func copyModel(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))))
	return dir
}

func TestWithLoss(t *testing.T) {
	m, err := Builtin("digits")
	require.NoError(t, err)
	same, err := m.WithLoss("")
	require.NoError(t, err)
	require.Same(t, m, same)
	_, err = m.WithLoss("accuracy")
	require.ErrorIs(t, err, ErrNoSignature, "it has a loss")
	for i := range m.Signatures {
		if loss := m.Signatures[i].Output(contract.OutputLoss); loss != nil {
			loss.Name = "total"
		}
	}
	m.settle()
	require.Empty(t, m.Roles.Train)
	require.ErrorContains(t, m.CheckTrainable(false),
		"signature train has no output loss; its scalars are accuracy, total")
	_, err = m.WithLoss("nothing")
	require.ErrorIs(t, err, ErrNoSignature)
	named, err := m.WithLoss("total")
	require.NoError(t, err)
	require.NoError(t, named.CheckTrainable(false))
	require.Equal(t, "train", named.Roles.Train)
	require.Equal(t, "evaluate", named.Roles.Evaluate)
	train, err := named.Signature("train")
	require.NoError(t, err)
	require.Equal(t, []string{"loss", "accuracy"}, Names(train.Metrics()))
	require.Empty(t, m.Roles.Train, "the model is left as it was")
	again, err := named.WithLoss("total")
	require.NoError(t, err)
	require.Same(t, named, again)
}
