"""steadyfit-import: what it puts back into a Keras model, and what it refuses."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import steadyfit_export as export
from steadyfit_export import importing


def model(units: int = 4, layers: int = 1, name: str | None = None) -> keras.Model:
    hidden = [keras.layers.Dense(units, name=name) for _ in range(layers)]
    made = keras.Sequential([keras.Input((3,)), *hidden, keras.layers.Dense(1)])
    made.compile("adam", "mse")
    return made


@pytest.fixture
def trained(tmp_path, random):
    """An export of a model that Keras has trained; its weights and the state of its optimizer."""
    made = model()
    made.fit(random.normal(size=(8, 3)), random.normal(size=(8, 1)), verbose=0)
    export.export(made, tmp_path / "out", check=False)
    return [v.numpy() for v in [*made.variables, *made.optimizer.variables]]


def test_puts_everything_back(trained, tmp_path, capsys):
    other = model()  # with other weights, and other numbers in its names
    other.save(tmp_path / "m.keras")
    into = ["--into", str(tmp_path / "m.keras")]
    assert importing.main([str(tmp_path / "out"), *into]) == 0
    assert "4 variables of the model, 10 of optimizers" in capsys.readouterr().out
    back = keras.models.load_model(tmp_path / "m.keras")
    ours = [v.numpy() for v in [*back.variables, *back.optimizer.variables]]
    assert all(np.array_equal(a, b) for a, b in zip(ours, trained, strict=True))
    weights = str(tmp_path / "m.weights.h5")
    assert importing.main([str(tmp_path / "out"), *into, "--out", weights]) == 0
    other.load_weights(weights)
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(other.variables, trained, strict=False))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.keras", "m.weights.h5", "out"]


@pytest.mark.parametrize(
    ("other", "expected", "found"),
    [
        (lambda: model(units=5), "dense/kernel float32[3, 5], of 4", "float32[3, 4], of 4"),
        (lambda: model(layers=2), "kernel float32[4, 4], of 6", "kernel float32[4, 1], of 4"),
        (lambda: model(layers=0), "kernel float32[3, 1], of 2", "kernel float32[3, 4], of 4"),
        (lambda: model(name="encoder"), "encoder/kernel", "dense/kernel"),
    ],
)
def test_refuses_another_model(trained, tmp_path, other, expected, found):
    file = tmp_path / "m.keras"
    keras.backend.clear_session()
    other().save(file)
    before = file.read_bytes()
    with pytest.raises(export.Refusal, match="the model's variables differ") as refused:
        importing.restore(tmp_path / "out", keras.models.load_model(file))
    assert expected in refused.value.found and found in refused.value.found
    assert importing.main([str(tmp_path / "out"), "--into", str(file)]) == 1
    assert file.read_bytes() == before


def test_refuses_another_optimizer(trained, tmp_path):
    other = model()
    other.compile("sgd", "mse")
    before = [v.numpy() for v in other.variables]
    with pytest.raises(export.Refusal, match="the optimizer's variables differ") as refused:
        importing.restore(tmp_path / "out", other)
    assert "sgd/iteration" in refused.value.found and "adam/iteration" in refused.value.found
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(other.variables, before, strict=True))
    with pytest.raises(export.Refusal, match="not compiled"):
        importing.restore(tmp_path / "out", keras.Sequential([keras.Input((3,))]))


def test_refuses_what_is_no_trained_model(tmp_path, capsys):
    model().save(tmp_path / "m.keras")
    into = ["--into", str(tmp_path / "m.keras")]
    assert importing.main([str(tmp_path), *into]) == 2
    assert "no SavedModel with weights" in capsys.readouterr().err
    assert importing.main([str(tmp_path), *into, "--out", "m.h5"]) == 2
    assert "--out takes FILE.keras" in capsys.readouterr().err
    assert importing.main([str(tmp_path), *into, "--out", str(tmp_path / "gone" / "m.keras")]) == 2
    assert "the folder does not exist" in capsys.readouterr().err


class Hidden(keras.Model):
    """Trains with an optimizer that is no attribute of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.pair = keras.layers.Dense(1), [keras.optimizers.SGD()]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(self.dense(data) ** 2)
        weights = self.trainable_weights
        self.pair[0].apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Gan(keras.Model):
    """Two networks, each with its optimizer; Keras's compile gets none, the default, or that of the first network."""

    def __init__(self) -> None:
        super().__init__()
        self.g = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
        self.d = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])

    def call(self, x):
        return self.d(x)

    def compile(self, d_opt, g_opt, **options):
        super().compile(**options)
        self.d_opt, self.g_opt = d_opt, g_opt

    def train_step(self, data):
        for network, optimizer in ((self.d, self.d_opt), (self.g, self.g_opt)):
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self.d(self.g(data[:, :2])) - self.d(data)) ** 2)
            weights = network.trainable_variables[::-1]
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def gan(given: str) -> keras.Model:
    made, d_opt = Gan(), keras.optimizers.Adam(0.01)
    made(np.zeros((1, 4), "float32"))
    options = {"default": {}, "none": {"optimizer": None}, "d": {"optimizer": d_opt}}
    made.compile(d_opt, keras.optimizers.Adam(0.02), **options[given])
    return made


@pytest.mark.parametrize("clear", [True, False], ids=["same names", "other numbers"])
@pytest.mark.parametrize("given", ["default", "none", "d"])
def test_builds_the_optimizers_of_an_own_step(tmp_path, random, given, clear):
    made, x = gan(given), random.normal(size=(8, 4)).astype("float32")
    made.fit(x, batch_size=2, verbose=0)
    export.export(made, tmp_path / "out", inputs={"x": "float32[4]"}, labels={}, check=False)
    if clear:
        keras.backend.clear_session()
    other = gan(given)
    counts = importing.restore(tmp_path / "out", other)
    assert counts == {"model": 6, "optimizer": {"default": 18, "none": 16, "d": 16}[given]}
    assert given != "default" or not other.optimizer.built
    for trained in (made, other):
        trained.fit(x, batch_size=2, shuffle=False, verbose=0)
    for network, optimizer in (("d", "d_opt"), ("g", "g_opt")):
        ours, theirs = ([*getattr(m, network).variables, *getattr(m, optimizer).variables] for m in (other, made))
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_refuses_state_that_it_cannot_place(tmp_path):
    made = Hidden()
    made.compile()
    export.export(made, tmp_path / "out", inputs={"x": "float32[3]"}, labels={}, check=False)
    with pytest.raises(export.Refusal, match="has no record of the Keras model") as refused:
        importing.restore(tmp_path / "out", made)
    assert "iteration" in refused.value.found


@pytest.mark.parametrize("name", ["out [1]", "lr[0.1", "a*b?", "back\\slash", "{x} ü'\""])
def test_takes_any_path(name, tmp_path):
    folder = tmp_path / name
    made = model()
    export.export(made, folder / "out")
    into = folder / "m.keras"
    model().save(into)
    assert importing.main([str(folder / "out"), "--into", str(into)]) == 0
    back = keras.models.load_model(into)
    assert all(np.array_equal(a, b) for a, b in zip(back.get_weights(), made.get_weights(), strict=True))
    assert sorted(p.name for p in folder.iterdir()) == ["m.keras", "out"]
