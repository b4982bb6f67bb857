"""LoRA, int8 and frozen weights: what an exported model trains, and what it refuses."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import steadyfit_export as export
from steadyfit_export.command import main

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(**options) -> keras.Model:
    """Two hidden layers in a block, and a head."""
    block = keras.Sequential(
        [
            keras.layers.Dense(8, activation="relu", name="first", **options),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(8, name="second"),
        ],
        name="block",
    )
    x = keras.Input((6,))
    return keras.Model(x, keras.layers.Dense(3, name="head")(block(x)))


def batch(random, n: int = 12) -> dict[str, np.ndarray]:
    return {"x": random.normal(size=(n, 6)).astype("float32"), "y": random.integers(0, 3, n)}


def trained(tmp_path, load, random, model, **options) -> set[str]:
    """The weights of the model that three steps change, by path."""
    export.export(model, tmp_path / "m", optimizer="adam", loss=LOSS, check=False, **options)
    loaded = load(tmp_path / "m")
    for _ in range(3):
        loaded.run("train", **batch(random))
    loaded.save(tmp_path / "after")
    before = tf.train.load_checkpoint(str(tmp_path / "m/variables/variables"))
    after = tf.train.load_checkpoint(str(tmp_path / "after"))
    keys = [key for key in before.get_variable_to_shape_map() if key.startswith("model/")]
    return {
        key.split("/")[1].replace(".S", "/")
        for key in keys
        if not np.array_equal(before.get_tensor(key), after.get_tensor(key))
    }


LORA = {f"block/{n}/lora_kernel_{m}" for n in ("first", "second") for m in "ab"}
HEAD = {"head/kernel", "head/bias"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lora": 2}, LORA | {"head/lora_kernel_a", "head/lora_kernel_b"}),
        ({"lora": 2, "train_only": "head"}, LORA | HEAD),
        ({"lora": "2:block"}, LORA),
        ({"lora": "2:first,block/sec*"}, LORA),
        ({"lora": "2:first", "quantize": "int8"}, {n for n in LORA if "first" in n}),
        ({"train_only": "head"}, HEAD),
        ({"train_only": ["*/bias"]}, {"block/first/bias", "block/second/bias", "head/bias"}),
        (
            {"train_only": "norm"},
            {f"block/norm/{n}" for n in ("gamma", "beta", "moving_mean", "moving_variance")},
        ),
        ({"lora": 2, "quantize": "int8", "train_only": "head"}, LORA | HEAD),
    ],
)
def test_a_step_changes_only_what_is_named(tmp_path, load, random, options, expected):
    """Frozen BatchNormalization keeps its moving averages, as in Keras."""
    assert trained(tmp_path, load, random, network(), **options) == expected


def test_lora_is_what_keras_trains(tmp_path, load, random):
    """Losses and predictions of Keras's own LoRA on an int8 base."""
    model = network()
    export.export(
        model,
        tmp_path / "m",
        optimizer="adam",
        loss=LOSS,
        lora=2,
        quantize="int8",
        train_only="head",
    )
    kinds = {v.path: v.dtype for v in model.weights}
    assert kinds["block/first/kernel"] == "int8"
    assert kinds["head/kernel"] == "float32"
    loaded = load(tmp_path / "m")
    model.compile(keras.optimizers.Adam(), LOSS, jit_compile=False)
    for _ in range(4):
        b = batch(random)
        theirs = model.train_on_batch(b["x"], b["y"])
        assert loaded.run("train", **b)["loss"] == pytest.approx(float(theirs), rel=1e-5)
        model.reset_metrics()
    b = batch(random)
    np.testing.assert_allclose(
        loaded.run("predict", x=b["x"])["output"], model.predict(b["x"], verbose=0), atol=1e-4
    )


def test_a_compiled_model_gets_a_new_optimizer(tmp_path, load, random):
    """The optimizer of a loaded model was built on the weights before the adaptation."""
    model = network()
    model.compile(keras.optimizers.Adam(0.125), LOSS)
    b = batch(random)
    model.train_on_batch(b["x"], b["y"])
    export.export(model, tmp_path / "m", train_only="head", check=False)
    slots = [n for n in load(tmp_path / "m").variables() if n.startswith("adam/")]
    assert sorted(n for n in slots if "momentum" in n or "velocity" in n) == [
        "adam/head_bias_momentum",
        "adam/head_bias_velocity",
        "adam/head_kernel_momentum",
        "adam/head_kernel_velocity",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lora": "4:query"},
            r"lora target 'query' matches no layer.*block/first, block/second, head",
        ),
        ({"lora": "4:norm"}, "'norm' matches no layer with enable_lora"),
        ({"lora": "4:head", "train_only": "head"}, "'head' matches no layer with enable_lora that train_only leaves"),
        ({"lora": 4, "train_only": "first,second,head"}, r"target '\*' matches no layer with enable_lora"),
        ({"lora": "0"}, r"expected RANK\[:TARGETS\]"),
        ({"lora": "rank"}, r"expected RANK\[:TARGETS\]"),
        ({"lora": "4:"}, r"expected RANK\[:TARGETS\]"),
        ({"train_only": "tail"}, "'tail' matches no weight that can be trained.*head"),
        ({"train_only": ""}, "has a pattern"),
        ({"quantize": "int8"}, "quantize needs lora or train_only"),
        ({"quantize": "int4", "lora": 2}, "expected int8"),
    ],
)
def test_what_cannot_be_adapted_is_refused(tmp_path, options, message):
    with pytest.raises(export.UsageError, match=message):
        export.export(network(), tmp_path / "m", optimizer="adam", loss=LOSS, **options)
    assert not (tmp_path / "m").exists()


def test_the_command_adapts(tmp_path, capsys):
    model = network()
    model.save(tmp_path / "model.keras")
    arguments = ["--model", str(tmp_path / "model.keras"), "--optimizer", "sgd", "--loss", "mse"]
    adapt = ["--lora", "2:block", "--quantize", "int8", "--train-only", "head"]
    assert main([*arguments, *adapt, "--out", str(tmp_path / "m")]) == 0
    assert "87 of 263 weights are trained" in capsys.readouterr().err
    wrong = [*arguments, "--lora", "2:tail", "--out", str(tmp_path / "n")]
    assert main(wrong) == 2
    assert "lora target 'tail' matches no layer" in capsys.readouterr().err
