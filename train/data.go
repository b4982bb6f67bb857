package train

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/files"
	"steadyfit/internal/inputs"
	"steadyfit/internal/texts"
	"steadyfit/option"
	"steadyfit/savedmodels"
)

// Data describes the data to read.
type Data struct {
	// Path is a file, a folder, or "builtin:NAME", as in data.Open.
	Path string
	// Memory is a dataset that replaces Path. Run does not close it.
	Memory *data.InMemory
	// Content is the content of the file Path, which must be a CSV file or JSON lines. Nil means that the file is read.
	Content []byte
	// Label is the label column of a table, or the label in records: its name or, in a CSV file, its number
	// from 1, or -1 for the last. Empty means the name of the label in the model, label or y. If the model has
	// several labels, Label lists their columns, as in "y_price,y_stars" or "price=cost,stars=rating"; empty
	// means columns with the names of the labels. A name before = may lack the prefix y_.
	Label string
	// Inputs maps inputs to the columns of a table, or the values of records, that feed them (data.CSVOptions.Inputs). An
	// input that is missing takes the columns that the model records, or those of its own name.
	Inputs map[string][]string
	// Classes are the class names of text labels and class folders in the order of their numbers. Nil means the
	// names that the model records or, if it records none, those of the training data in sorted order.
	Classes []string
	// Header is "no" for a CSV file without names of columns, and "yes" if the names in its first line may
	// be numbers; see data.CSVOptions.
	Header string
	// Height and Width are the size of images in pixels. Images in a folder are resized to it;
	// samples that are rows of pixels must have it. 0 means the size that the model takes.
	Height, Width int
	// Scale is the range to which bytes from 0 to 255 are scaled. Nil means the range of the training according to the
	// model's record. Without a recorded range, images in a folder or in records have the range that the model's input
	// takes, and other bytes are not scaled. A Scale that differs from the recorded range is an error.
	Scale *[2]float64
	// Ignore lists fields of the data, values of records, or columns of tables to omit.
	Ignore []string
	// Keep lists fields that a prediction needs besides the inputs, including fields that the training left out.
	// Kept columns of a table are texts.
	Keep []string
	// Schema has rules for columns of a table; nil means the rules in the model's record of its training.
	Schema *data.Schema
	// Note receives messages about how a table is read; nil discards them. Run uses Config.Report.
	Note func(message string)
}

// onDiskFrom is the least total size in bytes of .npy and uncompressed .npz files whose arrays stay on disk.
var onDiskFrom int64 = 1 << 30

// OpenData reads and checks the data for a signature of a model. part is "train", "test" or "validation",
// and selects that part of a dataset with two parts. The record of the model (savedmodels.DataRecord)
// determines the numbers of classes, the order of columns and the scale of bytes; Model.WithRecord gives
// it the record of an adapter. For a signature other than the train signature, OpenData leaves out
// columns of a table that the record does not have. It also leaves out fields that the training left out,
// unless an input of the signature takes them. The caller closes the dataset. JPEG files have the same
// pixels as in a training once InMemory.UseJPEG is called with session.Session.DecodeJPEG.
func OpenData(model *savedmodels.Model, signature string, d Data, part string, pass data.Pass) (*data.InMemory, error) {
	r, err := newReader(model, signature, d)
	if err != nil {
		return nil, unusable(err)
	}
	r.fixed = signature == model.Roles.Evaluate
	r.csv.InputsOnly = signature != model.Roles.Train && len(r.columns()) > 0
	ds, err := r.open(d, part)
	if err == nil {
		ds, err = r.scaled(ds)
	}
	if err == nil {
		err = checkData(ds, model, signature, pass)
	}
	if err != nil {
		return nil, unusable(errors.Join(err, r.close()))
	}
	return ds, nil
}

type reader struct {
	Data
	csv    data.CSVOptions
	text   bool // whether the only input takes text
	images data.ImageOptions
	// pixels is the range of pixel values that the model takes; nil means 0 to 255.
	pixels *[2]float64
	// record is the model's data record. The first data that is opened adds its columns, and the
	// training data adds the rest.
	record savedmodels.DataRecord
	// fixed is true if an earlier training or the training data determines the class numbers.
	fixed bool
	// predicts is true if no label is needed.
	predicts bool
	// sortable is the number of classes of a model without class names; 0 if unknown. If the data
	// has as many class names, their sorted order determines the class numbers.
	sortable int
	// labels are the label inputs of the model, and vectors those of the signature that take one-hot vectors.
	labels, vectors []savedmodels.Tensor
	// ranges are the values that float inputs take, by field, if the model records them.
	ranges map[string][2]float64
	opened []*data.InMemory
}

func newReader(model *savedmodels.Model, signature string, d Data) (*reader, error) {
	r := &reader{Data: d, predicts: signature == model.Roles.Predict}
	var err error
	if r.csv, err = inputs.CSVOptions(model, signature); err != nil {
		return nil, err
	}
	r.csv.Header, r.csv.Keep = d.Header, d.Keep
	if r.images, r.pixels, err = inputs.ImageOptions(model, signature, d.Height, d.Width); err != nil {
		return nil, err
	}
	r.text = len(r.csv.Inputs) == 1 && r.csv.Inputs[0].Type == "string"
	m := cmp.Or(model.Metadata, &savedmodels.Metadata{})
	r.record = m.DataRecord
	r.csv.Known = r.columns()
	if err := cmp.Or(r.setClasses(), r.setSchema()); err != nil {
		return nil, fmt.Errorf("%s: %w", model.Dir, err)
	}
	if s := r.record.Scale; s != nil && d.Scale != nil && *s != *d.Scale {
		return nil, &option.Error{Option: "Data.Scale", Value: scaleText(*d.Scale),
			Reason: "the model was trained with bytes scaled to " + scaleText(*s), Fix: "leave it out"}
	}
	sig, err := model.Signature(signature)
	if err != nil {
		return nil, err
	}
	if err := r.setColumns(model, sig); err != nil {
		return nil, err
	}
	if len(r.labels) > 1 && len(r.Classes) > 0 {
		return nil, refuse("Data.Classes", strings.Join(r.Classes, ","), "the model has the labels %s; give the column of "+
			"each a rule of type category in {Data.Schema}", texts.Some(savedmodels.Names(r.labels)))
	}
	if signature != model.Roles.Train {
		r.ignoreRecorded(sig)
	}
	r.setInputs(model, sig)
	return r, nil
}

// setInputs sets what the model says about the inputs of a signature.
func (r *reader) setInputs(model *savedmodels.Model, sig *savedmodels.Signature) {
	m := cmp.Or(model.Metadata, &savedmodels.Metadata{})
	r.ranges = map[string][2]float64{}
	for _, in := range sig.DataInputs() {
		kind := dtype.ByName(in.DType.String())
		r.sortable = max(r.sortable, m.Labels[in.Name].Classes)
		if n := inputs.OneHot(model, in); n > 0 {
			r.vectors, r.sortable = append(r.vectors, in), n
		} else if in.Name == "y" && inputs.Binary(model, in) {
			r.sortable = 2
		}
		values := m.Inputs[in.Name].Range
		if values == nil || kind == nil || kind.Kind != dtype.FloatKind {
			continue
		}
		r.ranges[in.Name] = *values
		if len(m.Inputs) == 1 {
			r.ranges["x"] = *values
		}
	}
}

// ignoreRecorded adds the fields that the training left out to Ignore, except for inputs of a signature.
func (r *reader) ignoreRecorded(sig *savedmodels.Signature) {
	r.Ignore = slices.Clone(r.Ignore)
	for _, name := range r.record.Ignored {
		if sig.Input(name) == nil && name != r.Label && !slices.Contains(slices.Concat(r.Ignore, r.Keep), name) {
			r.Ignore = append(r.Ignore, name)
		}
	}
}

// setClasses sets the class names of the options, which may rename those of the model.
func (r *reader) setClasses() error {
	if len(r.Classes) == 0 {
		return nil
	}
	given := strings.Join(r.Classes, ",")
	if n := len(r.csv.Names); n > 0 && n != len(r.Classes) {
		return refuse("Data.Classes", given, "the model has %d: %s", n, texts.Some(r.csv.Names))
	}
	for class, name := range r.Classes {
		if known := slices.Index(r.csv.Names, name); known >= 0 && known != class {
			return refuse("Data.Classes", given, "the model has %q as class %d, and this order makes it class %d; its "+
				"classes are %s", name, known, class, texts.Some(r.csv.Names))
		}
	}
	if r.record.NamedLabels = false; slices.Equal(r.Classes, r.csv.Names) {
		return nil // labels may be names or numbers
	}
	r.csv.Classes, r.csv.Names, r.images.Classes = r.Classes, nil, r.Classes
	return nil
}

// setSchema sets the rules for columns: the rules in the options, which a training records, or else the recorded rules.
func (r *reader) setSchema() error {
	if recorded := r.record.Schema; recorded != nil {
		r.csv.Schema = &data.Schema{Partial: true}
		if err := json.Unmarshal(recorded, r.csv.Schema); err != nil {
			return fmt.Errorf("the schema that the model records: %w", err)
		}
	}
	if r.Schema == nil {
		return nil
	}
	given, recorded := *r.Schema, r.csv.Schema
	if err := r.checkRules(&given, recorded); err != nil {
		return err
	}
	given.Partial = given.Partial || r.predicts // such a table may have no label
	r.csv.Schema = &given
	var err error
	r.record.Schema, err = json.Marshal(r.Schema)
	return err
}

// checkRules returns an error if given rules change the number of a value that the model was trained with. It reports
// other changes of the recorded rules.
func (r *reader) checkRules(given, recorded *data.Schema) error {
	if recorded == nil {
		return nil
	}
	var changed []string
	for _, column := range slices.Sorted(maps.Keys(recorded.Columns)) {
		before, now := recorded.Columns[column], given.Columns[column]
		was, _ := json.Marshal(before) // rules have texts and numbers only
		if is, _ := json.Marshal(now); bytes.Equal(is, was) {
			continue
		}
		changed = append(changed, column)
		if text, was, is := before.Renumbers(now); text != "" {
			return refuse("Data.Schema", nil, "column %q: %s has the number %s, and the model was trained with %s; give it "+
				"that number", column, text, is, was)
		}
	}
	if len(changed) > 0 && r.Note != nil {
		r.Note("the schema replaces the rules that the model was trained with for the columns " + texts.Some(changed))
	}
	return nil
}

func scaleText(s [2]float64) string { return fmt.Sprintf("%g,%g", s[0], s[1]) }

// open reads a part of a dataset, or the whole dataset if it has no parts.
func (r *reader) open(d Data, part string) (*data.InMemory, error) {
	ds, err := r.read(d, part)
	if errors.Is(err, data.ErrNoSplit) && part != "" {
		if len(r.opened) > 0 && files.Same(d.Path, r.Path) {
			return nil, &option.Error{Option: "Config.Validation", Value: d.Path,
				Reason: "this is the training data, which has no other part",
				Fix:    "give other data, or hold out a fraction with {Config.ValidationFraction 0.1}"}
		}
		ds, err = r.read(d, "")
	}
	if err != nil {
		return nil, err
	}
	if d.Memory == nil {
		r.noteColumns(ds)
	}
	if err := cmp.Or(r.checkColumns(ds, d.Memory != nil), r.checkRange(ds)); err != nil {
		return nil, err
	}
	if ds, err = r.without(ds); err == nil {
		err = r.checkClasses(ds)
	}
	if err != nil {
		return nil, err
	}
	return r.oneHot(ds)
}

// without omits the ignored fields.
func (r *reader) without(ds *data.InMemory) (*data.InMemory, error) {
	ignore := slices.DeleteFunc(slices.Clone(r.Ignore), func(name string) bool {
		mayLack := len(r.opened) > 1 || slices.Contains(r.record.Ignored, name) // other data than that of the training
		isLabel := name == "y" && fieldOf(ds, name).Columns != nil              // the label has another column
		return isLabel || mayLack && fieldOf(ds, name).Name == ""
	})
	ds, err := ds.Drop(ignore...)
	return ds, wrong("InMemory.Drop", nil, err)
}

// read reads a part of a dataset with two parts. An empty part reads a dataset without parts.
func (r *reader) read(d Data, part string) (ds *data.InMemory, err error) {
	if d.Memory != nil {
		return d.Memory, nil
	}
	if d.Path == "" {
		return nil, &option.Error{Option: "Data.Path", Reason: "missing", Fix: "give a file, a folder, or " +
			contract.BuiltinPrefix + "digits"}
	}
	o := data.Options{Split: part, CSV: r.csv, Images: r.images, OnDisk: d.Content == nil && onDisk(d.Path),
		Ignore: r.Ignore, Unlabelled: r.predicts}
	for _, o.CSV.Label = range r.labelNames() {
		if d.Content != nil {
			ds, err = data.Parse(d.Path, d.Content, o)
		} else {
			ds, err = data.Open(d.Path, o)
		}
		if !errors.Is(err, data.ErrField) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	r.opened = append(r.opened, ds)
	return ds, cmp.Or(r.checkInputs(ds), r.checkLabel(ds, o.CSV.Label))
}

// numbersThemselves reports whether each name of a class is its number.
func numbersThemselves(names []string) bool {
	for class, name := range names {
		if name != strconv.Itoa(class) {
			return false
		}
	}
	return true
}

// labelNames returns the names that the column of the label may have. Formats without columns ignore them.
func (r *reader) labelNames() []string {
	switch {
	case len(r.labels) > 1:
		return []string{""}
	case r.Label != "":
		return []string{r.Label}
	case r.predicts && r.csv.InputsOnly && r.Content != nil: // such as a request, which is parsed once
		return []string{""}
	}
	names := []string{"label", "y", ""}
	if only := r.only(); only != "" {
		names = slices.Concat(r.record.Columns[only], []string{only}, names)
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return name == "y" && slices.Contains(r.columns(), name) // a feature of the training
	})
}

// follow records the training data, which determines the class numbers of later data.
func (r *reader) follow(train *data.InMemory) {
	r.fixed = true
	if len(r.Ignore)+len(r.record.Ignored) > 0 {
		r.record.Ignored = append([]string{}, r.Ignore...)
	}
	if r.csv.Schema != nil {
		partial := *r.csv.Schema
		partial.Partial = true
		r.csv.Schema = &partial
	}
	if names := fieldOf(train, "y").Classes; len(names) > 0 {
		r.record.NamedLabels = r.record.NamedLabels || len(r.csv.Names)+len(r.Classes) == 0 && !numbersThemselves(names)
		r.record.ClassNames, r.csv.Classes, r.images.Classes = names, names, names
	}
	if columns := r.columnsOf(train); len(columns) > 0 {
		r.record.Columns = columns
		r.csv.Known = r.columns()
		r.csv.InputsOnly = len(r.csv.Known) > 0
		for i, in := range r.csv.Inputs {
			r.csv.Inputs[i].Columns = columns[in.Name]
		}
	}
	r.record.Unnamed = slices.ContainsFunc(r.csv.Inputs, func(in data.FieldSpec) bool {
		field := in.Name
		if len(r.csv.Inputs) == 1 {
			field = r.single(train)
		}
		return r.record.Columns[in.Name] == nil && len(fieldOf(train, field).Shape) > 0
	})
	if r.record.NumericLabels = len(r.record.ClassNames) == 0 && fieldOf(train, "y").Name != ""; r.record.NumericLabels {
		r.csv.Numbers = inputs.NumericLabels
	}
	if s := r.scaleOf(train); s != nil {
		r.record.Scale = s
	} else if fields := r.byteFields(train); fields != nil && !slices.ContainsFunc(fields,
		func(name string) bool { _, known := r.ranges[name]; return known }) {
		r.record.Scale = &[2]float64{0, math.MaxUint8}
	}
}

// checkClasses returns an error for class names whose numbers are unknown or differ from the training.
func (r *reader) checkClasses(ds *data.InMemory) error {
	names, known := fieldOf(ds, "y").Classes, r.csv.Classes
	if len(known) == 0 {
		known = r.csv.Names
	}
	var why string
	switch {
	case len(names) == 0 && r.record.NamedLabels && !r.predicts && fieldOf(ds, "y").Name != "":
		return option.Errorf("%s: field y has numbers, and the labels of the training were the names %s; use names, or list "+
			"the names in the order of the numbers ({Data.Classes}): %w", ds.Name(), texts.Some(r.record.ClassNames),
			data.ErrLabel)
	case len(names) == 0 || slices.Equal(names, known):
		return nil
	case len(known) > 0:
		return fmt.Errorf("%s: field y has the labels %s, and the model has %s; open the data with the class names of the "+
			"model: %w", ds.Name(), texts.Some(names), texts.Some(known), data.ErrLabel)
	case r.predicts || numberedBy(r.Schema, ds):
		return nil
	case r.csv.Numbers != "":
		why = r.csv.Numbers
	case !r.fixed:
		return r.checkRepeated(ds, names)
	case len(names) != r.sortable:
		why = "the model records no class names"
	default:
		if r.Note != nil {
			r.Note(numbered(names))
		}
		return nil
	}
	return fmt.Errorf("%s: field y has the labels %s, and %s, so the labels have no numbers; write numbers, or export "+
		"the model with its class names: %w", ds.Name(), texts.Some(names), why, data.ErrLabel)
}

// numberedBy reports whether a schema states the numbers of the classes of the label.
func numberedBy(s *data.Schema, ds *data.InMemory) bool {
	column := append(fieldOf(ds, "y").Columns, "y")[0]
	return s != nil && s.Columns[column].Values != nil
}

// numbered describes the numbers of classes that the model does not name.
func numbered(names []string) string {
	shown := make([]string, min(8, len(names)))
	for i := range shown {
		shown[i] = fmt.Sprintf("%s %d", names[i], i)
	}
	return "the model does not name its classes; their numbers are: " + strings.Join(shown, ", ")
}

// checkRepeated returns an error if few labels of a table repeat, since they are then no names of classes.
func (r *reader) checkRepeated(ds *data.InMemory, names []string) error {
	if len(names) <= max(2, r.sortable) || 2*len(names) <= ds.Len() || ds.FilePath(0) != "" {
		return nil
	}
	first := names[0]
	for b := range ds.Batches(data.Pass{Batch: 1}) { // the values are in memory
		y, _ := b.Field("y")
		if classes, ok := y.Values.([]int64); ok {
			first = names[classes[0]]
		}
		break
	}
	return option.Errorf("%s: the labels of %d rows have %d different texts, such as %q in the first row, and names of "+
		"classes repeat: read numbers and dates by a rule of a schema ({Data.Schema}), or list the names of the classes "+
		"({Data.Classes}): %w", ds.Name(), ds.Len(), len(names), first, data.ErrLabel)
}

// checkRange returns an error for bytes outside the values that an input takes.
func (r *reader) checkRange(ds *data.InMemory) error {
	if r.Scale != nil || r.record.Scale != nil || imageFields(ds) != nil {
		return nil
	}
	for _, f := range ds.Fields() {
		values, ok := r.ranges[f.Name]
		if !ok || f.Type != "uint8" || values[0] <= 0 && values[1] >= math.MaxUint8 {
			continue
		}
		err := data.Check(ds, f.Name, data.Values{Integers: &[2]int64{int64(math.Ceil(values[0])),
			int64(math.Floor(values[1]))}})
		if !errors.Is(err, data.ErrValue) {
			return err
		}
		wrong := &option.Error{Option: "Data.Scale", Err: err,
			Reason: fmt.Sprintf("field %s of %s has bytes outside %g to %g, the range that the model records", f.Name, ds.Name(),
				values[0], values[1])}
		wrong.Fix = fmt.Sprintf("set it to %g,%g for bytes from 0 to 255, or to 0,255 to use the values as they are",
			values[0], values[1])
		if f.Name != r.single(ds) {
			wrong.Fix = "scale the field in the file, as float32"
		}
		return wrong
	}
	return nil
}

func onDisk(path string) bool {
	inside, _ := files.Glob(filepath.Join(path, "*.npy")) // an error means that path is not a valid pattern
	var bytes int64
	for _, file := range append(inside, path) {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
	}
	return bytes >= onDiskFrom
}

// scaleOf returns the range to which bytes are scaled; nil if they are used as they are.
func (r *reader) scaleOf(ds *data.InMemory) *[2]float64 {
	switch {
	case r.Scale != nil:
		return r.Scale
	case r.record.Scale != nil && r.byteFields(ds) != nil:
		return r.record.Scale
	case imageFields(ds) != nil:
		return r.pixels
	}
	return nil
}

// fieldOf returns the description of a field. It is empty if there is no such field.
func fieldOf(ds data.Dataset, name string) data.FieldSpec {
	for _, f := range ds.Fields() {
		if f.Name == name {
			return f
		}
	}
	return data.FieldSpec{}
}

// imageFields returns the fields with decoded images.
func imageFields(ds data.Dataset) (names []string) {
	for _, f := range ds.Fields() {
		if f.Image {
			names = append(names, f.Name)
		}
	}
	return names
}

// single returns the field of the only input, which is x if no field has the name of the input.
func (r *reader) single(ds *data.InMemory) string {
	if len(r.csv.Inputs) != 1 {
		return "x"
	}
	return cmp.Or(fieldOf(ds, r.csv.Inputs[0].Name).Name, "x")
}

// byteFields returns the fields with images, or else that of the only input if it has bytes.
func (r *reader) byteFields(ds *data.InMemory) []string {
	fields := imageFields(ds)
	if name := r.single(ds); fields == nil && fieldOf(ds, name).Type == "uint8" {
		fields = []string{name}
	}
	return fields
}

// scaled scales bytes to the range of scaleOf.
func (r *reader) scaled(ds *data.InMemory) (_ *data.InMemory, err error) {
	to, fields := r.scaleOf(ds), r.byteFields(ds)
	if to == nil || r.Scale == nil && *to == [2]float64{0, math.MaxUint8} {
		return ds, nil
	}
	if fields == nil {
		fields = []string{r.single(ds)} // Scale is set, so the error is about this field
	}
	for _, field := range fields {
		if ds, err = ds.Scale(field, float32(to[0]), float32(to[1])); err != nil {
			return nil, wrong("Data.Scale", scaleText(*to), err)
		}
	}
	return ds, nil
}

// release returns the memory that was needed to parse the data, which would stay resident during the
// training and count in budgets. Data on disk needs none.
func (r *reader) release() {
	if slices.ContainsFunc(r.opened, func(ds *data.InMemory) bool { return ds.HeapBytes() > 0 }) {
		debug.FreeOSMemory()
	}
}

func (r *reader) close() (err error) {
	if r == nil {
		return nil
	}
	for _, ds := range r.opened {
		err = errors.Join(err, ds.Close())
	}
	r.opened = nil
	return err
}
