package savedmodels

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"

	"steadyfit/tfbind"
)

// newTypes are the types of TensorFlow 2.21 that the protobuf package lacks.
var newTypes = map[tfbind.DType]string{
	24: "DT_FLOAT8_E5M2", 25: "DT_FLOAT8_E4M3FN", 26: "DT_FLOAT8_E4M3FNUZ", 27: "DT_FLOAT8_E4M3B11FNUZ",
	28: "DT_FLOAT8_E5M2FNUZ", 29: "DT_INT4", 30: "DT_UINT4", 31: "DT_INT2", 32: "DT_UINT2", 33: "DT_FLOAT4_E2M1FN",
}

// typeName is TensorFlow's name of the type in protobufs, as in "DT_FLOAT".
func (t Tensor) typeName() string {
	if name, ok := newTypes[t.DType]; ok {
		return name
	}
	return types_go_proto.DataType(t.DType).String()
}

// printable replaces what could steer a terminal: names in a model are
// whatever its author wrote.
func printable(s string) string {
	clean := !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) && utf8.ValidString(s)
	if clean {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// WriteText writes what `steadyfit inspect` prints: the signatures in the
// layout of `saved_model_cli show --all` (TensorFlow 2.21), then what steadyfit
// will use each for, then the problems with their fixes. The error is w's.
func (m *Model) WriteText(w io.Writer) error {
	var b bytes.Buffer
	m.writeSignatures(&b)
	m.writeUses(&b)
	m.writeProblems(&b)
	_, err := w.Write(b.Bytes())
	return err
}

func (m *Model) writeSignatures(b *bytes.Buffer) {
	line := func(format string, texts ...string) {
		args := make([]any, len(texts))
		for i, t := range texts {
			args[i] = printable(t)
		}
		fmt.Fprintf(b, format+"\n", args...)
	}
	line("\nMetaGraphDef with tag-set: '%s' contains the following SignatureDefs:", strings.Join(m.Tags, ", "))
	for _, s := range m.Signatures {
		line("\nsignature_def['%s']:", s.Name)
		for _, side := range []struct {
			word    string
			tensors []Tensor
		}{{"input", s.Inputs}, {"output", s.Outputs}} {
			line("  The given SavedModel SignatureDef contains the following %s(s):", side.word)
			for _, t := range side.tensors {
				line("    %ss['%s'] tensor_info:", side.word, t.Name)
				line("        dtype: %s", t.typeName())
				line("        shape: %s", t.tuple())
				line("        name: %s", t.Op)
			}
		}
		line("  Method name is: %s", s.Method)
	}
}

// tuple writes the shape as saved_model_cli does: "(-1, 3)".
func (t Tensor) tuple() string {
	if t.UnknownRank {
		return "unknown_rank"
	}
	dims := make([]string, len(t.Shape))
	for i, d := range t.Shape {
		dims[i] = strconv.FormatInt(d, 10)
	}
	return "(" + strings.Join(dims, ", ") + ")"
}

func sizeText(d int64) string {
	if d < 0 {
		return "?"
	}
	return strconv.FormatInt(d, 10)
}

// uses pairs each purpose with the signature chosen for it.
func (r Roles) uses() [][2]string {
	return [][2]string{
		{"train one step", r.Train}, {"the same, compiled", r.TrainXLA},
		{"train several steps in a call", r.TrainN}, {"the same, compiled", r.TrainNXLA},
		{"train with other workers", r.TrainSync},
		{"gradients of a part of a batch", r.Gradients}, {"update from the parts", r.Apply},
		{"evaluate", r.Evaluate}, {"predict", r.Predict},
		{"set the learning rate", r.SetLearningRate},
		{"begin metrics anew", r.ResetMetrics}, {"end the training", r.Finalize},
		{"save", r.Save}, {"restore", r.Restore},
	}
}

func (m *Model) writeUses(b *bytes.Buffer) {
	b.WriteString("\nsteadyfit uses the signatures to:\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	seen := map[string]bool{}
	for _, use := range m.Roles.uses() {
		s := m.find(use[1])
		if s == nil {
			continue
		}
		seen[s.Name] = true
		var in, own, out []string
		for _, t := range s.Inputs {
			if IsReserved(t.Name) {
				own = append(own, t.Name)
			} else {
				in = append(in, t.Name+" "+t.DType.String()+t.shapeText())
			}
		}
		for _, t := range s.Metrics() {
			out = append(out, t.Name)
		}
		if len(out) == 0 {
			for _, t := range s.Outputs {
				out = append(out, t.Name)
			}
		}
		takes := strings.Join(in, ", ")
		if len(own) > 0 {
			if takes != "" {
				takes += "; "
			}
			takes += "reserved " + strings.Join(own, ", ")
		}
		if takes == "" {
			takes = "nothing"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s -> %s\n", use[0], printable(s.Name), printable(takes), printable(strings.Join(out, ", ")))
	}
	// A Buffer takes every write.
	_ = table.Flush()
	if len(seen) == 0 {
		b.WriteString("  nothing\n")
	}
	var unused []string
	for _, s := range m.Signatures {
		if !seen[s.Name] {
			unused = append(unused, s.Name)
		}
	}
	if len(unused) > 0 {
		fmt.Fprintf(b, "  not used: %s\n", printable(enumerate(unused, 10)))
	}

	var trained, kept int
	var size int64
	for _, v := range m.Variables {
		size += v.Bytes()
		if v.Trained {
			trained++
		}
		if v.Saved && v.Restored {
			kept++
		}
	}
	fmt.Fprintf(b, "\n%s, %d bytes; training changes %d, checkpoints hold %d.", plural(len(m.Variables), "variable"), size, trained, kept)
	if m.TensorFlowVersion != "" {
		fmt.Fprintf(b, " Written by TensorFlow %s.", printable(m.TensorFlowVersion))
	}
	b.WriteString("\n")
}

func (m *Model) writeProblems(b *bytes.Buffer) {
	if len(m.Problems) == 0 {
		b.WriteString("\nNo problems found.\n")
		return
	}
	b.WriteString("\nProblems:\n")
	for i, p := range m.Problems {
		fmt.Fprintf(b, "  %s %s: %s\n", p.Severity, p.Code, printable(p.Message))
		if fixShown(m.Problems, i) {
			fmt.Fprintf(b, "    fix: %s\n", printable(p.Fix))
		}
	}
}

// tensorJSON and the types below fix the names that `inspect --json` prints;
// scripts rely on them.
type tensorJSON struct {
	Name  string  `json:"name"`
	Op    string  `json:"op"`
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"` // null: rank unknown; -1: size unknown
}

// MarshalJSON gives name, op, dtype ("float32") and shape: -1 for a size that
// may vary, null if the rank is unknown.
func (t Tensor) MarshalJSON() ([]byte, error) {
	j := tensorJSON{t.Name, t.Op, t.DType.String(), slices.Clone(t.Shape)}
	if t.UnknownRank {
		j.Shape = nil
	} else if j.Shape == nil {
		j.Shape = []int64{}
	}
	return json.Marshal(j)
}

// MarshalJSON gives name, dtype, shape as a Tensor's, and restored, saved,
// trained.
func (v Variable) MarshalJSON() ([]byte, error) {
	j := struct {
		Name     string  `json:"name"`
		DType    string  `json:"dtype"`
		Shape    []int64 `json:"shape"`
		Restored bool    `json:"restored"`
		Saved    bool    `json:"saved"`
		Trained  bool    `json:"trained"`
	}{v.Name, v.DType.String(), v.Shape, v.Restored, v.Saved, v.Trained}
	if v.UnknownRank {
		j.Shape = nil
	}
	return json.Marshal(j)
}

// MarshalJSON gives what `steadyfit inspect --json` prints: dir, sha256,
// tensorflow_version, tags, trainable, signatures, roles, saver (null if there
// is none), variables, problems, metadata (null if there is none). Lists are
// in the order of Model's fields and never null.
func (m *Model) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Dir        string      `json:"dir"`
		Hash       string      `json:"sha256"`
		TensorFlow string      `json:"tensorflow_version"`
		Tags       []string    `json:"tags"`
		Trainable  bool        `json:"trainable"`
		Signatures []Signature `json:"signatures"`
		Roles      Roles       `json:"roles"`
		Saver      *Saver      `json:"saver"`
		Variables  []Variable  `json:"variables"`
		Problems   []Problem   `json:"problems"`
		Metadata   *Metadata   `json:"metadata"`
	}{
		m.Dir, m.Hash, m.TensorFlowVersion, orEmpty(m.Tags), m.CheckTrainable(CheckOptions{}) == nil,
		orEmpty(m.Signatures), m.Roles, m.Saver, orEmpty(m.Variables), orEmpty(m.Problems), m.Metadata,
	})
}

// orEmpty makes an empty list print as [].
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
