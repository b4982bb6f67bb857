package main

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNamesOfKeras trains a model whose inputs and outputs have names that a signature cannot have. Data,
// errors, metrics and predictions use the names of the model, and the losses are those of Keras.
//
//lane:skip onednn (compares with Keras, which has the same setting)
func TestNamesOfKeras(t *testing.T) {
	dir := t.TempDir()
	out := runPython(t, "-c", `
import csv, json, pathlib, sys
import numpy as np
import keras
sys.path.insert(0, "../../scripts")
import steadyfit_export as export
folder = pathlib.Path(sys.argv[1])
names = ["1stFlrSF", "class", "from", "self", "_x", "Age", "age", "größe (cm)", "a.b", "a_b", "loss",
    "seed", "sample_weight", "learning_rate", "loss_scale", "group_size"]
given = {name: keras.Input((1,), name=name) for name in names}
nested = {**given, "meta": {"q": keras.Input((1,), name="q")}}
keras.utils.set_random_seed(1)
hidden = keras.layers.Dense(8, "relu", name="base", trainable=False)(
    keras.layers.Concatenate()([*given.values(), nested["meta"]["q"]]))
outputs = {name: keras.layers.Dense(1)(hidden) for name in ("loss", "Other/out", "other.out")}
model = keras.Model(nested, outputs)
model.compile("adam", {name: "mse" for name in outputs}, jit_compile=False,
    metrics={"other.out": [keras.metrics.MeanAbsoluteError(name=name) for name in ("mean/error", "my mae (%)", "größe")]})
model.save(folder / "model.keras")
export.export(model, folder / "model", micro_batches=True)
random = np.random.default_rng(2)
x = {name: random.normal(size=(48, 1)).astype("float32") for name in [*names, "meta/q"]}
y = {name: random.normal(size=(48, 1)).astype("float32") for name in outputs}
with open(folder / "train.jsonl", "w", encoding="utf-8") as file:
    for i in range(48):
        row = {name: float(v[i, 0]) for name, v in x.items()} | {f"y_{n}": float(v[i, 0]) for n, v in y.items()}
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
for file, columns in (("train.csv", x | {f"y_{n}": v for n, v in y.items()}), ("new.csv", x)):
    with open(folder / file, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(reversed(columns))
        writer.writerows(zip(*(v[:, 0] for v in reversed(columns.values()))))
whole = {**{name: x[name] for name in names}, "meta": {"q": x["meta/q"]}}
history = model.fit(whole, y, epochs=2, batch_size=16, shuffle=False, verbose=0).history
predicted = model.predict(whole, verbose=0)
evaluated = model.evaluate(whole, y, batch_size=16, verbose=0, return_dict=True)
print(json.dumps([{n: v[-1] for n, v in history.items()}, {n: v[:, 0].tolist() for n, v in predicted.items()}, evaluated]))
model.save(folder / "keras.keras")
`, dir)
	var keras []map[string]any
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &keras))
	model, data := filepath.Join(dir, "model"), filepath.Join(dir, "train.jsonl")
	train := func(name string, args ...string) (trained string, last map[string]any) {
		trained, history := filepath.Join(dir, name), filepath.Join(dir, name+".jsonl")
		steadyfit(t, append([]string{"fit", "--model", model, "--data", data, "--shuffle=false", "--batch", "16", "--epochs",
			"2", "--auto", "off", "--history", history, "--out", trained, "--early-stop", "other.out_my mae (%):9"}, args...)...)
		records := recordsOf(t, history)
		last = records[len(records)-1]
		return trained, last
	}
	trained, last := train("plain")
	require.Len(t, keras[0], 7)
	for name, want := range keras[0] {
		assert.InDelta(t, want, last[name], 1e-5, name)
	}
	for name, args := range map[string][]string{"cached": {"--cache-features", "on"}, "split": {"--micro-batches", "2"},
		"several": {"--steps-per-execution", "3"}, "table": {"--data", filepath.Join(dir, "train.csv")}} {
		_, again := train(name, args...)
		assert.InDelta(t, last["loss"], again["loss"], 1e-5, name)
	}
	var evaluated map[string]any
	require.NoError(t, json.Unmarshal([]byte(steadyfit(t, "evaluate", "--model", trained, "--data", data, "--batch", "16",
		"--json")), &evaluated))
	for name, want := range keras[2] {
		assert.InDelta(t, want, evaluated[name], 1e-5, name)
	}
	runPython(t, "../../scripts/import.py", trained, "--into", filepath.Join(dir, "model.keras"))
	runPython(t, "-c", `
import sys
import keras
import numpy as np
ours, theirs = (keras.models.load_model(f"{sys.argv[1]}/{name}.keras").weights for name in ("model", "keras"))
for a, b in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6, err_msg=b.path)
`, dir)

	predictions := filepath.Join(dir, "predictions.csv")
	steadyfit(t, "predict", "--model", trained, "--data", filepath.Join(dir, "new.csv"), "--out", predictions)
	file, err := os.Open(predictions)
	require.NoError(t, err)
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 49)
	for i, column := range rows[0] {
		want := keras[1][strings.TrimSuffix(column, "_0")]
		for j, row := range rows[1:] {
			have, err := strconv.ParseFloat(row[i], 64)
			require.NoError(t, err)
			require.InDelta(t, want.([]any)[j], have, 1e-5, column)
		}
	}

	missing := filepath.Join(dir, "missing.csv")
	require.NoError(t, os.WriteFile(missing, []byte("class,Age\n1,2\n"), 0o600))
	said, err := program(t, "predict", "--model", trained, "--data", missing, "--out", predictions).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(said), `no column "1stFlrSF", which input 1stFlrSF of the model takes`)
	shown := steadyfit(t, "inspect", model)
	assert.Contains(t, shown, "gr__e__cm_'] tensor_info")
	assert.Contains(t, shown, "größe (cm) float32[?,1]")
}

// TestNameOfTheOnlyInput trains a model with one input from arrays and a table with its name, and from arrays called x.
//
//lane:skip onednn (compares with Keras, which has the same setting)
func TestNameOfTheOnlyInput(t *testing.T) {
	dir := t.TempDir()
	out := runPython(t, "-c", `
import pathlib, sys
import numpy as np
import keras
sys.path.insert(0, "../../scripts")
import steadyfit_export as export
folder = pathlib.Path(sys.argv[1])
keras.utils.set_random_seed(1)
x = keras.Input((3,), name="größe")
model = keras.Model(x, keras.layers.Dense(1)(x))
model.compile("adam", "mse", jit_compile=False)
export.export(model, folder / "model", input_ranges={"größe": (-9, 9)})
random = np.random.default_rng(2)
x, y = (random.normal(size=(48, n)).astype("float32") for n in (3, 1))
np.savez(folder / "named.npz", größe=x, y=y)
np.savez(folder / "plain.npz", x=x, y=y)
np.savetxt(folder / "table.csv", np.hstack([x, y]), delimiter=",", header="größe1,größe2,größe3,y", comments="",
    encoding="utf-8")
print(model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0).history["loss"][-1])
`, dir)
	lines := strings.Fields(out)
	want, err := strconv.ParseFloat(lines[len(lines)-1], 64)
	require.NoError(t, err)
	trained := filepath.Join(dir, "trained")
	var tables []string
	for _, name := range []string{"named.npz", "plain.npz", "table.csv"} {
		history, predictions := filepath.Join(dir, name+".history.csv"), filepath.Join(dir, name+".predictions.csv")
		steadyfit(t, "fit", "--model", filepath.Join(dir, "model"), "--data", filepath.Join(dir, name), "--shuffle=false",
			"--batch", "16", "--epochs", "2", "--auto", "off", "--history", history, "--out", trained)
		rows, err := os.ReadFile(history)
		require.NoError(t, err)
		last, err := strconv.ParseFloat(strings.Split(strings.Split(string(rows), "\n")[2], ",")[2], 64)
		require.NoError(t, err)
		assert.InDelta(t, want, last, 1e-5, name)
		steadyfit(t, "predict", "--model", trained, "--data", filepath.Join(dir, name), "--out", predictions)
		text, err := os.ReadFile(predictions)
		require.NoError(t, err)
		tables = append(tables, string(text))
	}
	assert.Equal(t, []string{tables[0], tables[0], tables[0]}, tables)
	shown := steadyfit(t, "inspect", trained)
	assert.Contains(t, shown, "größe float32[?,3], y float32[?,1] -> loss")
	assert.Contains(t, steadyfit(t, "inspect", "--json", trained), `"key": "x"`)
	other := filepath.Join(dir, "other.csv")
	require.NoError(t, os.WriteFile(other, []byte("größe1,größe2\n1,2\n"), 0o600))
	said, err := program(t, "predict", "--model", trained, "--data", other, "--out", other+".npy").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(said), `no column "größe3", which input größe of the model takes`)
}
