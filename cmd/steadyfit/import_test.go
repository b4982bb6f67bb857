package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGoesOnInKeras trains models for an epoch in steadyfit, imports the result with
// steadyfit-import, and trains another epoch in Keras. Weights and optimizer equal those of two
// epochs in Keras alone, bit for bit. The models have the running averages of a
// BatchNormalization, a schedule, averaged weights, a scaled loss, and a custom train step with
// random numbers.
//
//lane:skip onednn (compares with Keras, which has the same setting)
func TestGoesOnInKeras(t *testing.T) {
	python(t)
	dir := t.TempDir()
	const models = `
import json, os, pathlib, sys
import numpy as np
import keras
import tensorflow as tf
sys.path.insert(0, "../../scripts")
import steadyfit_export as export
from steadyfit_export import importing
folder = pathlib.Path(sys.argv[1])
layers = keras.layers

@keras.saving.register_keras_serializable()
class Own(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.one, self.noise, self.two = layers.Dense(8), layers.Dropout(0.2, seed=7), layers.Dense(1)
    def call(self, x, training=False):
        return self.two(self.noise(self.one(x), training=training))
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

def sequential():
    return keras.Sequential([
        keras.Input((6,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(1, dtype="float32"),
    ])

def functional():
    x = keras.Input((6,), name="x")
    return keras.Model(x, layers.Dense(1)(layers.BatchNormalization()(sequential()(x))))

def half():
    with export.dtype_policy("mixed_float16"):
        return sequential()

def own():
    model = Own()
    model(np.zeros((1, 6), "float32"))
    return model

O = keras.optimizers
CASES = {
    "adam": (sequential, lambda: O.Adam(0.01)),
    "schedule": (functional, lambda: O.SGD(O.schedules.ExponentialDecay(0.1, 2, 0.9), momentum=0.9)),
    "averages": (sequential, lambda: O.AdamW(0.01, use_ema=True, ema_momentum=0.8)),
    "half": (half, lambda: O.LossScaleOptimizer(O.Adam(0.01))),
    "own": (own, lambda: O.RMSprop(0.01)),
}
random = np.random.default_rng(3)
data = {"x": random.normal(size=(72, 6)).astype("float32"), "y": random.normal(size=(72, 1)).astype("float32")}
fit = dict(x=data["x"], y=data["y"], batch_size=16, shuffle=False, verbose=0)
state = lambda model: [(v.path, v.numpy()) for v in [*model.variables, *model.optimizer.variables]]
`
	runPython(t, "-c", models+`
np.savez(folder / "data.npz", **data)
for name, (build, optimizer) in CASES.items():
    keras.utils.set_random_seed(4)
    model = build()
    # XLA rounds differently.
    model.compile(optimizer(), "mse", jit_compile=False)
    model.save(folder / f"{name}.keras")
    inputs = {"x": "float32[6]"} if name == "own" else None
    export.export(model, folder / name, inputs=inputs, micro_batches=False, check=False)
`, dir)
	entries, err := filepath.Glob(filepath.Join(dir, "*.keras"))
	require.NoError(t, err)
	require.Len(t, entries, 5)
	for _, file := range entries {
		model := file[:len(file)-len(".keras")]
		steadyfit(t, "fit", "--model", model, "--data", filepath.Join(dir, "data.npz"), "--shuffle=false", "--batch", "16",
			"--epochs", "1", "--out", model+"-out")
	}
	out := runPython(t, "-c", models+`
differ = {}
for name in CASES:
    file = str(folder / f"{name}.keras")
    model = keras.models.load_model(file)
    for epochs in (1, 1) if name == "averages" else (2,):
        model.fit(epochs=epochs, **fit)
    out = str(folder / f"{name}-out")
    if name != "own":
        with open(os.devnull, "w") as sys.stdout:
            assert importing.main([out, "--into", file]) == 0
        sys.stdout = sys.__stdout__
    ours = keras.models.load_model(file)
    if name == "own":
        importing.restore(out, ours)  # files of Keras have no state of random seeds
    ours.fit(epochs=1, **fit)
    differ[name] = [a for (a, x), (_, y) in zip(state(ours), state(model), strict=True) if not np.array_equal(x, y)]
print(json.dumps(differ))
`, dir)
	var differ map[string][]string
	require.NoError(t, json.Unmarshal([]byte(out), &differ))
	require.Len(t, differ, 5)
	for name, variables := range differ {
		assert.Empty(t, variables, name)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 16, "steadyfit-import left a temporary file")
}
