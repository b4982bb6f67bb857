"""Makes the small SavedModels that the tests of package savedmodels read.

    python make.py [--out DIR] [NAME ...]

Needs TensorFlow 2.21 and Keras 3. The script writes each model to OUT/NAME, and two files with the
results that the tests expect: OUT/NAME.show, the output of `saved_model_cli show --all` for its
signatures, and OUT/NAME.step, the result of TensorFlow's first train step after loading the model
("ok", or the error and the variable that it could not find).

A model that shows a mistake makes that mistake in the usual way.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.tools import saved_model_cli

F32 = tf.float32


def spec(shape, name, dtype=F32):
    return tf.TensorSpec(shape, dtype, name=name)


class Linear(tf.Module):
    """y = xW + b under SGD with momentum, with every variable tracked."""

    def __init__(self, inputs=3, dtype=F32):
        super().__init__()
        self.w = tf.Variable(tf.zeros([inputs, 1], dtype), name="w")
        self.b = tf.Variable(tf.zeros([1], dtype), name="b")
        self.slots = [
            tf.Variable(tf.zeros_like(v), trainable=False, name=v.name[:-2] + "_momentum")
            for v in (self.w, self.b)
        ]

    def logits(self, x):
        return tf.matmul(x, self.w) + self.b

    def loss(self, x, y):
        e = self.logits(x) - y
        return tf.reduce_mean(tf.square(e)), tf.reduce_mean(tf.abs(e))

    def step(self, x, y, rate=0.1):
        with tf.GradientTape() as tape:
            loss, mae = self.loss(x, y)
        weights = (self.w, self.b)
        for v, slot, g in zip(weights, self.slots, tape.gradient(loss, weights)):
            slot.assign(0.9 * slot + g)
            v.assign_sub(tf.cast(rate, v.dtype) * slot)
        return {"loss": loss, "mae": mae}


class Good(Linear):
    def __init__(self):
        super().__init__()
        self.rate = tf.Variable(0.1, trainable=False, name="rate")

    @tf.function(input_signature=[spec([None, 3], "x"), spec([None, 1], "y")])
    def train(self, x, y):
        return self.step(x, y, self.rate)

    @tf.function(input_signature=[spec([None, None, 3], "x"), spec([None, None, 1], "y")])
    def train_n(self, x, y):
        n = tf.shape(x)[0]
        loss, mae = tf.constant(0.0), tf.constant(0.0)
        for i in tf.range(n):
            out = self.step(x[i], y[i], self.rate)
            loss += out["loss"]
            mae += out["mae"]
        scale = 1.0 / tf.cast(n, F32)
        return {"loss": loss * scale, "mae": mae * scale}

    @tf.function(input_signature=[spec([4, 3], "x"), spec([4, 1], "y")], jit_compile=True)
    def train_xla(self, x, y):
        return self.step(x, y, self.rate)

    @tf.function(input_signature=[spec([None, 3], "x"), spec([None, 1], "y")])
    def evaluate(self, x, y):
        loss, mae = self.loss(x, y)
        return {"mae": mae, "loss": loss}

    @tf.function(input_signature=[spec([None, 3], "x")])
    def predict(self, x):
        return {"y": self.logits(x)}

    @tf.function(input_signature=[spec([], "learning_rate")])
    def set_learning_rate(self, learning_rate):
        self.rate.assign(learning_rate)
        return {"learning_rate": self.rate.read_value()}


class Reserved(Linear):
    """Takes every reserved input, and gives every reserved output."""

    def __init__(self):
        super().__init__()
        self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")

    @tf.function(input_signature=[
        spec([None, 3], "features"), spec([None, 1], "y"), spec([None], "sample_weight"),
        spec([], "learning_rate"), spec([2], "seed", tf.int64), spec([], "loss_scale")])
    def train(self, features, y, sample_weight, learning_rate, seed, loss_scale):
        noise = tf.random.stateless_uniform(tf.shape(features), seed)
        weights = (self.w, self.b)
        with tf.GradientTape() as tape:
            e = self.logits(features * noise) - y
            loss = tf.reduce_mean(sample_weight[:, None] * tf.square(e))
            scaled = loss * loss_scale
        grads = [g / loss_scale for g in tape.gradient(scaled, weights)]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in grads])
        if finite:
            for v, g in zip(weights, grads):
                v.assign_sub(learning_rate * g)
        return {"loss": loss, "grads_finite": finite,
                "global_step": self.global_step.assign_add(1)}


class BadReserved(Linear):
    """Uses reserved names for other things than they are reserved for."""

    @tf.function(input_signature=[
        spec([None, 3], "x"), spec([None, 1], "y"),
        spec([], "learning_rate", tf.int32), spec([3], "seed", tf.int64),
        spec([None, 2], "sample_weight"), spec([], "group_size")])
    def train(self, x, y, learning_rate, seed, sample_weight, group_size):
        out = self.step(x, y)
        extra = (tf.cast(learning_rate, F32) + tf.cast(tf.reduce_sum(seed), F32)
                 + tf.reduce_sum(sample_weight) + group_size)
        return {"loss": out["loss"] + extra, "grads_finite": tf.constant(1.0)}


def dense():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input([3]), keras.layers.Dense(1, name="dense")])


class KerasTrap(tf.Module):
    """Holds a Keras model and its optimizer as attributes, so optimizer slots are not saved."""

    tracked = False

    def __init__(self):
        super().__init__()
        self.model = dense()
        self.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        if self.tracked:
            self.state = [v.value for v in self.model.variables + self.optimizer.variables]

    @tf.function(input_signature=[spec([None, 3], "x"), spec([None, 1], "y")])
    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}

    @tf.function(input_signature=[spec([None, 3], "x")])
    def serving_default(self, x):
        return {"y": self.model(x, training=False)}


class KerasTracked(KerasTrap):
    tracked = True


class Unsafe(Linear):
    """Accesses files and Python, in the signature's function and in nested functions."""

    @tf.function(input_signature=[spec([None, 3], "x"), spec([None, 1], "y")])
    def train(self, x, y):
        extra = tf.constant(0.0)
        for _ in tf.range(2):
            if tf.reduce_sum(x) > 0:
                extra += tf.strings.to_number(tf.io.read_file("/etc/offset"))
        doubled = tf.py_function(lambda v: v * 2, [y], F32)
        doubled.set_shape([None, 1])
        tf.raw_ops.SaveV2(prefix="/tmp/each-step", tensor_names=["w"], shape_and_slices=[""],
                          tensors=[self.w.read_value()])
        # A program hidden in a tensor: TensorFlow runs the graph that it holds.
        hidden = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.Dataset.range(3)._variant_tensor)
        extra += tf.cast(tf.raw_ops.DatasetCardinality(
            input_dataset=tf.raw_ops.DatasetFromGraph(graph_def=hidden)), F32)
        tf.print("step")
        out = self.step(x, doubled)
        return {"loss": out["loss"] + extra}

    @tf.function(input_signature=[spec([None, 3], "x")])
    def predict(self, x):
        tf.io.write_file("/tmp/seen", tf.strings.as_string(tf.reduce_sum(x)))
        return {"y": self.logits(x)}


class OddInputs(Linear):
    """Unknown rank, strings, and a type that Go cannot feed."""

    @tf.function(input_signature=[
        spec(None, "any"), spec([None], "text", tf.string),
        spec([None, 3], "wave", tf.complex64), spec([None, 1], "y")])
    def train(self, any, text, wave, y):
        n = tf.cast(tf.strings.length(text), F32)
        return self.step(tf.reshape(any, [-1, 3]) + tf.math.real(wave) + n[:, None], y)


class Half(Linear):
    """Variables of 16 bits, nothing that keeps small gradients from vanishing,
    and a batch size traced into the step."""

    def __init__(self):
        super().__init__(dtype=tf.float16)

    @tf.function(input_signature=[spec([8, 3], "x"), spec([8, 1], "y")])
    def train(self, x, y):
        out = self.step(tf.cast(x, tf.float16), tf.cast(y, tf.float16))
        return {"loss": tf.cast(out["loss"], F32)}


class TwoInputs(Linear):
    """Two feature inputs and micro-batches, but no train_n."""

    def __init__(self):
        super().__init__(inputs=5)
        self.acc = [tf.Variable(tf.zeros_like(v), trainable=False, name="acc") for v in (self.w, self.b)]

    @tf.function(input_signature=[spec([None, 3], "left"), spec([None, 2], "right"), spec([None, 1], "target")])
    def train(self, left, right, target):
        return self.step(tf.concat([left, right], 1), target)

    @tf.function(input_signature=[spec([None, 3], "left"), spec([None, 2], "right"), spec([None, 1], "target")])
    def gradients(self, left, right, target):
        weights = (self.w, self.b)
        with tf.GradientTape() as tape:
            loss, _ = self.loss(tf.concat([left, right], 1), target)
        for a, g in zip(self.acc, tape.gradient(loss, weights)):
            a.assign_add(g)
        return {"loss": loss}

    @tf.function(input_signature=[])
    def apply(self):
        for v, a in zip((self.w, self.b), self.acc):
            v.assign_sub(0.1 * a)
            a.assign(tf.zeros_like(a))
        return {"done": tf.constant(True)}


class BatchHash(tf.Module):
    """A hash of all batches in their order, and a linear classifier, for the built-in digits.

    The hash is exact in float32: it does not depend on how a batch is split. The classifier is
    linear, so its weights depend on the order of additions in their last bits only.
    """

    INPUTS = [spec([None, 64], "x"), spec([None], "y", tf.int64)]

    def __init__(self):
        super().__init__()
        self.hash = tf.Variable(tf.zeros([64]), name="hash")
        self.w = tf.Variable(tf.zeros([64, 10]), name="w")
        self.pixels = tf.Variable(tf.zeros([64]), trainable=False, name="pixels")
        self.slope = tf.Variable(tf.zeros([64, 10]), trainable=False, name="slope")
        self.samples = tf.Variable(0.0, trainable=False, name="samples")

    @tf.function(input_signature=INPUTS)
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.matmul(x / 16, self.w))
            loss = tf.reduce_sum(losses)
        self.slope.assign_add(tape.gradient(loss, self.w))
        self.pixels.assign_add(tf.reduce_sum(x + tf.cast(y, F32)[:, None], 0))
        self.samples.assign_add(tf.cast(tf.shape(x)[0], F32))
        return {"loss": tf.reduce_mean(losses)}

    @tf.function(input_signature=[])
    def apply(self):
        self.hash.assign(tf.math.floormod(3 * self.hash + self.pixels, 65521.0))
        self.w.assign_sub(0.1 * self.slope / self.samples)
        for sums in (self.pixels, self.slope, self.samples):
            sums.assign(tf.zeros_like(sums))
        return {"done": tf.constant(True)}

    @tf.function(input_signature=INPUTS)
    def train(self, x, y):
        out = self.gradients(x, y)
        self.apply()
        return out


class OnDevice(Linear):
    """The on-device training convention, with its own save and restore."""

    saves_slots = True

    def saved(self):
        return [self.w, self.b] + (self.slots if self.saves_slots else [])

    @tf.function(input_signature=[spec([None, 3], "x"), spec([None, 1], "y")])
    def learn(self, x, y):
        return self.step(x, y)

    @tf.function(input_signature=[spec([None, 3], "x")])
    def infer(self, x):
        return {"output": self.logits(x)}

    @tf.function(input_signature=[spec([], "checkpoint_path", tf.string)])
    def save(self, checkpoint_path):
        variables = self.saved()
        tf.raw_ops.Save(filename=checkpoint_path, tensor_names=[v.name for v in variables],
                        data=[v.read_value() for v in variables])
        return {"checkpoint_path": checkpoint_path}

    @tf.function(input_signature=[spec([], "checkpoint_path", tf.string)])
    def restore(self, checkpoint_path):
        out = {}
        for v in self.saved():
            value = tf.raw_ops.Restore(file_pattern=checkpoint_path, tensor_name=v.name, dt=v.dtype)
            v.assign(tf.ensure_shape(value, v.shape))
            out[v.name.replace(":0", "")] = value
        return out


class WeightsOnly(OnDevice):
    saves_slots = False


class Vocabulary(Linear):
    """Looks words up in two tables with vocabularies in files."""

    def __init__(self):
        super().__init__()
        with open("words.txt", "w") as f:
            f.write("cat\ndog\n")
        with open("colors.txt", "w") as f:
            f.write("red\ngreen\n")
        self.tables = [self.table("words.txt"), self.table("colors.txt")]

    initializer = tf.lookup.TextFileInitializer

    def table(self, file):
        field = tf.lookup.TextFileIndex
        rows = self.initializer(file, tf.string, field.WHOLE_LINE, tf.int64, field.LINE_NUMBER)
        return tf.lookup.StaticHashTable(rows, -1)

    @tf.function(input_signature=[
        spec([None], "word", tf.string), spec([None], "color", tf.string), spec([None, 1], "y")])
    def train(self, word, color, y):
        columns = [self.tables[0].lookup(word), self.tables[1].lookup(color)]
        x = tf.cast(tf.stack([*columns, tf.zeros_like(columns[0])], 1), F32)
        return self.step(x, y)


class ConstantPath(tf.lookup.TextFileInitializer):
    """Reads another file than its asset."""

    def initialize(self, table):
        tf.raw_ops.InitializeTableFromTextFileV2(
            table_handle=table.resource_handle, filename="/etc/passwd", key_index=-2, value_index=-1)


class ForeignVocabulary(Vocabulary):
    initializer = ConstantPath


class PredictOnly(Linear):
    @tf.function(input_signature=[spec([None, 3], "x")])
    def serving_default(self, x):
        return {"y": self.logits(x)}


SIGNATURES = ("train", "train_n", "train_xla", "learn", "evaluate", "predict", "infer",
              "serving_default", "gradients", "apply", "set_learning_rate", "save", "restore")

MODELS = {
    "good": Good, "reserved": Reserved, "badreserved": BadReserved, "trap": KerasTrap,
    "keras": KerasTracked, "unsafe": Unsafe, "oddinputs": OddInputs, "half": Half,
    "twoinputs": TwoInputs, "batchhash": BatchHash, "ondevice": OnDevice, "weightsonly": WeightsOnly,
    "predictonly": PredictOnly, "vocabulary": Vocabulary, "foreign": ForeignVocabulary,
}

# Models without functions, as TensorFlow 1 wrote them: {name: (resource
# variables, what initialises the slots)}.
FLAT = {"flat": (True, None), "flatinit": (True, "init"), "flatref": (False, None)}


CONSTANTS = ("tags", "training")


def shown(path):
    """The output of saved_model_cli for the signatures that users call."""
    out = io.StringIO()
    graphs = saved_model_cli.saved_model_utils.read_saved_model(path).meta_graphs
    with contextlib.redirect_stdout(out):
        saved_model_cli._show_all(path)
    text = out.getvalue()
    text = text[: text.index("The MetaGraph with tag set")]
    for graph in graphs:
        init = "\nsignature_def['__saved_model_init_op']:\n"
        if init in text:
            start = text.index(init)
            end = text.find("\nsignature_def[", start + 1)
            text = text[:start] + (text[end:] if end >= 0 else "")
    return text


def export_flat(name, path):
    """A graph without functions, whose Saver covers only the weights."""
    resource, init = FLAT[name]
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as sess:
        x = v1.placeholder(F32, [None, 3], "x")
        y = v1.placeholder(F32, [None, 1], "y")
        w = v1.get_variable("w", [3, 1], use_resource=resource, initializer=v1.zeros_initializer())
        predicted = tf.matmul(x, w)
        loss = tf.reduce_mean(tf.square(predicted - y))
        step = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with tf.control_dependencies([step]):
            after = tf.identity(loss, "loss")
        sess.run(v1.global_variables_initializer())
        build = v1.saved_model.build_signature_def
        info = v1.saved_model.build_tensor_info
        builder = v1.saved_model.Builder(path)
        slots = [v for v in v1.global_variables() if v is not w]
        builder.add_meta_graph_and_variables(
            sess, ["serve"], {
                "train": build({"x": info(x), "y": info(y)}, {"loss": info(after)}, "train"),
                "predict": build({"x": info(x)}, {"y": info(predicted)}, "predict"),
            },
            main_op=v1.variables_initializer(slots) if init else None,
            saver=v1.train.Saver([w]))
        builder.save()


class Training(Linear):
    """Signatures that take a bool: logits are doubled in training."""

    def __init__(self):
        super().__init__()
        self.w.assign(tf.ones_like(self.w))

    def logits(self, x, training=False):
        return (tf.matmul(x, self.w) + self.b) * tf.where(training, 2.0, 1.0)

    @tf.function(input_signature=[spec([None, 3], "x"), spec([None, 1], "y"), spec([], "training", tf.bool)])
    def train(self, x, y, training):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.logits(x, training) - y))
        weights = (self.w, self.b)
        for v, g in zip(weights, tape.gradient(loss, weights)):
            v.assign_sub(0.01 * g)
        return {"loss": loss}

    @tf.function(input_signature=[spec([None, 3], "x"), spec([None, 1], "y"), spec([], "training", tf.bool)])
    def evaluate(self, x, y, training):
        return {"loss": tf.reduce_mean(tf.square(self.logits(x, training) - y))}

    @tf.function(input_signature=[spec([None, 3], "x"), spec([], "training", tf.bool)])
    def predict(self, x, training):
        return {"output": self.logits(x, training)}


def export_tags(path):
    """Two metagraphs, as TensorFlow 1 wrote them, and a number for the whole batch: logits are multiplied by it."""
    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(path)
    build, info = v1.saved_model.build_signature_def, v1.saved_model.build_tensor_info
    for tags in (["train"], ["serve"]):
        with tf.Graph().as_default(), v1.Session() as sess:
            x = v1.placeholder(F32, [None, 3], "x")
            y = v1.placeholder(F32, [None, 1], "y")
            keep = v1.placeholder(F32, [], "keep_prob")
            w = v1.get_variable("w", [3, 1], use_resource=True, initializer=v1.ones_initializer())
            predicted = tf.matmul(x, w) * keep
            loss = tf.reduce_mean(tf.square(predicted - y))
            given = {"x": info(x), "keep_prob": info(keep)}
            signatures = {"predict": build(given, {"output": info(predicted)}, "predict")}
            if tags == ["train"]:
                with tf.control_dependencies([v1.train.GradientDescentOptimizer(0.01).minimize(loss)]):
                    after = tf.identity(loss, "after")
                given = dict(given, y=info(y))
                signatures["train"] = build(given, {"loss": info(after)}, "train")
                signatures["evaluate"] = build(given, {"loss": info(loss)}, "evaluate")
            sess.run(v1.global_variables_initializer())
            saver = v1.train.Saver([w])
            if tags == ["train"]:
                builder.add_meta_graph_and_variables(sess, tags, signatures, saver=saver)
            else:
                builder.add_meta_graph(tags, signatures, saver=saver)
    builder.save()


def export_constants(name, out):
    """Models that need constants; they have no files beside them."""
    path = os.path.join(out, "constants", name)
    shutil.rmtree(path, ignore_errors=True)
    if name == "tags":
        export_tags(path)
    else:
        module = Training()
        tf.saved_model.save(module, path, {s: getattr(module, s) for s in ("train", "evaluate", "predict")},
                            tf.saved_model.SaveOptions(save_debug_info=False))
    for extra in ("fingerprint.pb", "assets"):
        p = os.path.join(path, extra)
        shutil.rmtree(p) if os.path.isdir(p) else os.path.exists(p) and os.remove(p)


def first_step(path):
    """The result of TensorFlow's first train step after loading the model."""
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as sess:
        meta = tf.compat.v1.saved_model.load(sess, ["serve"], path)
        sig = meta.signature_def.get("train") or meta.signature_def.get("learn")
        if sig is None:
            return "no train signature"
        feeds = {}
        for t in sig.inputs.values():
            dims = [] if t.tensor_shape.unknown_rank else [max(d.size, 1) for d in t.tensor_shape.dim]
            dtype = tf.as_dtype(t.dtype)
            if t.tensor_shape.unknown_rank:
                dims = [1, 3]
            feeds[t.name] = (np.full(dims, "", dtype=object) if dtype == tf.string
                             else np.ones(dims, dtype.as_numpy_dtype))
        try:
            sess.run([t.name for t in sig.outputs.values()], feeds)
        except tf.errors.OpError as e:
            missing = re.search(r"Could not find variable (\S+?)\. |uninitialized value (\S+)", e.message)
            return type(e).__name__ + (" " + (missing[1] or missing[2]) if missing else "")
    return "ok"


def export(name, out):
    path = os.path.join(out, name)
    shutil.rmtree(path, ignore_errors=True)
    if name in FLAT:
        export_flat(name, path)
    else:
        module = MODELS[name]()
        signatures = {s: getattr(module, s) for s in SIGNATURES if hasattr(type(module), s)}
        tf.saved_model.save(module, path, signatures=signatures,
                            options=tf.saved_model.SaveOptions(save_debug_info=False))
    step = first_step(path)
    with open(path + ".show", "w") as f:
        f.write(shown(path))
    with open(path + ".step", "w") as f:
        f.write(step + "\n")
    for extra, remove in (("fingerprint.pb", os.remove), ("assets", os.rmdir)):
        with contextlib.suppress(OSError):  # vocabularies are assets
            remove(os.path.join(path, extra))
    print(name, os.path.getsize(os.path.join(path, "saved_model.pb")), step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    out = os.path.abspath(args.out)
    with tempfile.TemporaryDirectory() as files:
        os.chdir(files)  # the names of vocabularies are in the models
        for name in args.names or [*MODELS, *FLAT, *CONSTANTS]:
            (export_constants if name in CONSTANTS else export)(name, out)
