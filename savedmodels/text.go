package savedmodels

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"steadyfit/internal/texts"
	"steadyfit/internal/tfproto"
)

// typeName returns the name of the type in protobufs, such as "DT_FLOAT".
func (t Tensor) typeName() string { return tfproto.DataType(t.DType).String() }

// WriteText writes the text of `steadyfit inspect`: whether the model can be trained, the problems with
// their fixes, the roles, and the signatures in the format of `saved_model_cli show --all` (TensorFlow 2.21).
func (m *Model) WriteText(w io.Writer) error {
	var b bytes.Buffer
	m.writeVerdict(&b)
	m.writeUses(&b)
	m.writeSignatures(&b)
	_, err := w.Write(b.Bytes())
	return err
}

func (m *Model) trainable() bool {
	return m.CheckTrainable(false) == nil
}

func (m *Model) writeVerdict(b *bytes.Buffer) {
	verdict := "can"
	if !m.trainable() {
		verdict = "cannot"
	}
	problems := "Problems:"
	if len(m.Problems) == 0 {
		problems = "No problems found."
	}
	fmt.Fprintf(b, "The model %s be trained. %s\n", verdict, problems)
	for i, p := range m.Problems {
		fmt.Fprintf(b, "  %s %s: %s\n", p.Severity, p.Code, texts.Printable(p.Message))
		if fixShown(m.Problems, i) {
			fmt.Fprintf(b, "    fix: %s\n", texts.Printable(p.Fix))
		}
	}
}

func (m *Model) writeSignatures(b *bytes.Buffer) {
	line := func(format string, parts ...string) {
		args := make([]any, len(parts))
		for i, t := range parts {
			args[i] = texts.Printable(t)
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
				line("    %ss['%s'] tensor_info:", side.word, cmp.Or(t.Key, t.Name))
				line("        dtype: %s", t.typeName())
				line("        shape: %s", t.tuple())
				line("        name: %s", t.Op)
			}
		}
		line("  Method name is: %s", s.Method)
	}
}

// tuple formats the shape like saved_model_cli, as in "(-1, 3)".
func (t Tensor) tuple() string {
	if t.UnknownRank {
		return "unknown_rank"
	}
	return "(" + strings.Trim(strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ", "), "[]") + ")"
}

// uses pairs each purpose with its signature.
func (r Roles) uses() [][2]string {
	return [][2]string{
		{"train one step", r.Train}, {"the same, compiled", r.TrainXLA},
		{"train several steps per execution", r.TrainN}, {"the same, compiled", r.TrainNXLA},
		{"gradients of a micro-batch", r.Gradients}, {"apply the gradients", r.Apply},
		{"evaluate", r.Evaluate}, {"predict", r.Predict},
		{"set the learning rate", r.SetLearningRate},
		{"reset the metrics", r.ResetMetrics}, {"finish the training", r.Finalize},
	}
}

func (m *Model) writeUses(b *bytes.Buffer) {
	b.WriteString("\nsteadyfit uses the signatures to:\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	unused := m.signatureNames()
	for _, use := range m.Roles.uses() {
		s := m.find(use[1])
		if s == nil {
			continue
		}
		unused = slices.DeleteFunc(unused, func(name string) bool { return name == s.Name })
		var in, reserved, takes []string
		for _, t := range s.Inputs {
			if t.Constant != nil {
				takes = append(takes, fmt.Sprintf("%s=%v", t.Name, *t.Constant))
			} else if t.IsReserved() {
				reserved = append(reserved, t.Name)
			} else {
				in = append(in, t.Name+" "+t.DType.String()+t.shapeText())
			}
		}
		if len(in) > 0 {
			takes = append(takes, strings.Join(in, ", "))
		}
		if len(reserved) > 0 {
			takes = append(takes, "reserved "+strings.Join(reserved, ", "))
		}
		out := Names(s.Metrics())
		if len(out) == 0 {
			out = Names(s.Outputs)
		}
		fmt.Fprintf(table, "  %s\t%s\t%s -> %s\n", use[0], texts.Printable(s.Name),
			texts.Printable(cmp.Or(strings.Join(takes, "; "), "nothing")), texts.Printable(strings.Join(out, ", ")))
	}
	_ = table.Flush()
	if len(unused) == len(m.Signatures) {
		b.WriteString("  nothing\n")
	}
	if len(unused) > 0 {
		fmt.Fprintf(b, "  not used: %s\n", texts.Printable(texts.Some(unused)))
	}

	m.writeVariables(b)
}

func (m *Model) writeVariables(b *bytes.Buffer) {
	partial := m.Base != "" && m.Roles.Train != "" && len(m.frozen()) > 0
	var trained, saved, frozen, weights int
	var size, frozenBytes, weightBytes int64
	for _, v := range m.Variables {
		size += v.Bytes()
		if v.Frozen {
			frozen, frozenBytes = frozen+1, frozenBytes+v.Bytes()
		}
		if v.Weight {
			weights, weightBytes = weights+1, weightBytes+v.Bytes()
		}
		if v.Trained {
			trained++
		}
		if v.Saved && v.Restored && (!v.Frozen || !partial) {
			saved++
		}
	}
	fmt.Fprintf(b, "\n%s, %d bytes; training changes %d, checkpoints hold %d.", texts.Count(len(m.Variables), "variable"),
		size, trained, saved)
	if m.TensorFlowVersion != "" {
		fmt.Fprintf(b, " Written by TensorFlow %s.", texts.Printable(m.TensorFlowVersion))
	}
	b.WriteString("\n")
	if !partial {
		return
	}
	fmt.Fprintf(b, "Checkpoints leave out %s (%d bytes, base %.12s). An adapter holds %s, %d bytes.\n",
		texts.Count(frozen, "frozen variable"), frozenBytes, m.Base, texts.Count(weights, "variable"), weightBytes)
}

// MarshalJSON returns the output of `steadyfit inspect --json`. Lists are never null.
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
		m.Dir, m.Hash, m.TensorFlowVersion, m.Tags, m.trainable(),
		m.Signatures, m.Roles, m.Saver, m.Variables, m.Problems, m.Metadata,
	})
}
