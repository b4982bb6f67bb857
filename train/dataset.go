package train

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/autotune"
	"steadyfit/internal/contract"
	"steadyfit/internal/inputs"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

func (t *training) pass() data.Pass {
	return data.Pass{Batch: t.Loop.Batch, DropRemainder: t.Loop.DropRemainder}
}

func (t *training) openData() (err error) {
	defer t.worker.Busy()()
	roles := t.plan.Roles()
	t.Data.Note = func(message string) { t.report("warning", message) }
	if t.reader, err = newReader(t.model, roles.Train, t.Data); err != nil {
		return err
	}
	train, err := t.reader.open(t.Data, "train")
	if err != nil {
		return err
	}
	t.reader.follow(train)
	if train, err = t.validation(train, roles); err != nil {
		return err
	}
	if train, err = t.weighted(train, roles.Train); err != nil {
		return err
	}
	if train, err = t.reader.scaled(train); err != nil {
		return err
	}
	if err := checkData(train, t.model, roles.Train, t.pass()); err != nil {
		return err
	}
	t.samples, t.data = train, t.ordered(train, nil)
	t.reader.release()
	return t.checkParts()
}

// checkImages decodes all images once, as the training does.
func (t *training) checkImages(ctx context.Context) error {
	if t.imagesChecked {
		return nil
	}
	defer t.worker.Busy()()
	err := data.CheckImages(ctx, t.samples)
	if held, ok := t.Loop.Validation.(*data.InMemory); ok && err == nil {
		err = data.CheckImages(ctx, held)
	}
	t.imagesChecked = err == nil
	return unusable(err)
}

// decodeJPEG sets the decoder of the JPEG files of all data. Before a session is open, trials use
// Go's decoder, since opening a session would fix the threads of the process.
func (t *training) decodeJPEG(decode func(file []byte, channels int) (pixels []byte, width, height int, err error)) {
	for _, ds := range append(slices.Clone(t.reader.opened), t.samples) {
		ds.UseJPEG(decode)
	}
}

// ordered returns the training data shuffled, if Config.Shuffle is set, and prefetched. source, if not
// nil, is the data from which train was computed, in the same order.
func (t *training) ordered(train, source *data.InMemory) data.Dataset {
	var ds data.Dataset = train
	if t.Shuffle {
		ds = train.Shuffle(t.Seed)
	}
	if source != nil && t.Shuffle {
		source = source.Shuffle(t.Seed)
	}
	if source != nil {
		ds = &cached{ds, source}
	}
	return t.prefetched(ds)
}

// prefetched returns a dataset whose batches are read ahead, as Config.Prefetch says.
func (t *training) prefetched(ds data.Dataset) data.Dataset {
	ahead := t.Prefetch
	if ahead < 0 {
		ahead = autotune.Prefetch(ds, t.Loop.Batch, t.Budget.Limit > 0)
	}
	if ahead > 0 {
		ds = data.Prefetch(ds, ahead)
	}
	return ds
}

// validation opens the validation data or splits it off.
func (t *training) validation(train *data.InMemory, roles savedmodels.Roles) (_ *data.InMemory, err error) {
	var held *data.InMemory
	switch {
	case t.ValidationFraction != 0:
		if train, held, err = train.Split(1-t.ValidationFraction, t.Seed); err != nil {
			return nil, wrong("Config.ValidationFraction", t.ValidationFraction, err)
		}
	case t.Validation != "":
		if held, err = t.reader.open(Data{Path: t.Validation}, "validation"); err == nil {
			err = t.reader.checkColumns(held, true)
		}
		if err != nil {
			return nil, err
		}
		if name := held.Name(); strings.HasPrefix(name, filepath.Clean(t.Validation)+string(filepath.Separator)) {
			t.report("validation", text(fmt.Sprintf("%d samples of %s", held.Len(), name)))
		}
	default:
		return train, nil
	}
	if roles.Evaluate == "" {
		return nil, refuse("Config.Validation", nil, "%s has no signature to evaluate with (evaluate or eval); export it "+
			"with one, or leave the validation out", t.model.Dir)
	}
	if held, err = t.reader.scaled(held); err == nil {
		err = checkData(held, t.model, roles.Evaluate, data.Pass{Batch: t.Loop.Batch})
	}
	t.Loop.Validation = held
	return train, err
}

// weighted adds the class weights to the training data. The class weights refer to the field of the only label.
func (t *training) weighted(train *data.InMemory, signature string) (*data.InMemory, error) {
	if len(t.ClassWeights) == 0 {
		return train, nil
	}
	sig, err := t.model.Signature(signature)
	if err != nil {
		return nil, err
	}
	if !sig.Takes(contract.InputSampleWeight) {
		return nil, &option.Error{Option: "Config.ClassWeights", Reason: "signature " + signature + " takes no " +
			contract.InputSampleWeight, Fix: "export it with --sample-weight of steadyfit-export"}
	}
	fields, err := session.CheckData(t.model, signature, train, t.pass())
	if err != nil {
		return nil, err
	}
	labels := inputs.Labels(t.model, sig)
	if len(labels) != 1 {
		return nil, refuse("Config.ClassWeights", nil, "expected a model with one label, and signature %s takes %d",
			signature, len(labels))
	}
	label := fields[labels[0].Name]
	weights, err := t.weightsOf(fieldOf(train, label), classesOf(t.model.Metadata, labels[0].Name))
	if err != nil {
		return nil, err
	}
	train, err = data.WithSampleWeights(train, label, weights)
	return train, wrong("Config.ClassWeights", nil, err)
}

// weightsOf returns ClassWeights by the numbers of the classes. A key is the name of a class or, if no class has that
// name, a number. n is the number of classes; 0 if unknown.
func (t *training) weightsOf(label data.FieldSpec, n int) (map[int64]float64, error) {
	n = max(n, len(label.Classes))
	if len(label.Shape) == 1 && label.Shape[0] > 1 { // one-hot
		n = label.Shape[0]
	}
	weights := make(map[int64]float64, len(t.ClassWeights))
	for _, key := range slices.Sorted(maps.Keys(t.ClassWeights)) {
		class := slices.Index(label.Classes, key)
		if class < 0 {
			var err error
			if class, err = strconv.Atoi(key); err != nil || class < 0 || n > 0 && class >= n {
				return nil, refuse("Config.ClassWeights", nil, "%q is neither the name nor the number of a class; classes are "+
					"numbered from 0", key)
			}
		}
		if _, twice := weights[int64(class)]; twice {
			return nil, refuse("Config.ClassWeights", nil, "%q is class %d, which has another weight", key, class)
		}
		weights[int64(class)] = t.ClassWeights[key]
	}
	return weights, nil
}
