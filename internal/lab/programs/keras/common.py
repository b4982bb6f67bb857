"""What the Keras programs share: options, models, generated samples and the result.

The work of a program is a function, so that nothing of it is left when finish frees the rest and prints the result.
"""

import argparse
import ctypes
import gc
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "scripts"))
import bench_models
import builtin
import steadyfit_export as export

tf, keras = export.load_tensorflow()
MODELS = ["digits-cnn", *sorted({*builtin.MODELS, *bench_models.MODELS} - {"digits-cnn"})]
# epoch is a number of steps. samples is that of the whole set, which is epoch * batch if it is 0.
OPTIONS = {"steps": 100, "epoch": 10, "batch": 32, "samples": 0, "seed": 1}
OPTIONS |= {name: ["never", "epoch"] for name in ("gc", "trim", "clear_session")}


def make_model(name):
    """Makes a model, and returns it with what its training needs."""
    if name not in builtin.MODELS:
        return bench_models.MODELS[name]()
    loss = {"loss": "sparse_categorical_crossentropy", "from_logits": True}
    return builtin.MODELS[name][0](), {**loss, "metrics": ["accuracy"], "learning_rate": 2e-3}


def parse(doc, **own):
    """Parses the options of every program, and its own. A list has the choices, of which the first is the default."""
    p = argparse.ArgumentParser(description=doc, allow_abbrev=False)
    for name, values in {**OPTIONS, **own}.items():
        words = values if isinstance(values, list) else None
        default = words[0] if words else values
        p.add_argument(f"--{name}", type=type(default), choices=words, default=default)
    options = p.parse_args()
    if min(options.steps, options.epoch, options.batch) < 1 or options.samples % options.epoch:
        p.error("--steps, --epoch and --batch are at least 1, and --samples is a multiple of --epoch")
    options.samples = options.samples or options.epoch * options.batch
    options.whole_batch = options.samples // options.epoch  # with it, an epoch has each sample once
    keras.utils.set_random_seed(options.seed % 2**32)
    return options


def end_step(n, options):
    """Does what the options ask for after step n, from 1, if it ends an epoch."""
    if n % options.epoch:
        return
    if options.clear_session == "epoch" and n < options.steps:
        keras.backend.clear_session()
    if options.gc == "epoch":
        gc.collect()
    if options.trim == "epoch":
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def finish(losses=None):
    """Frees what Keras and Python still hold, and prints the result. losses is the first and the last one."""
    keras.backend.clear_session()
    gc.collect()
    result = {"tensorflow": tf.__version__, "keras": keras.__version__, "python": sys.version.split()[0]}
    if losses is not None:
        result.update(loss_first=f"{losses[0]:.6g}", loss_last=f"{losses[1]:.6g}")
    print(json.dumps(result), flush=True)


def rounded(n, most, shapes):
    """Returns the number of samples that is used for n of at most most, as the option --shapes says."""
    return {"varying": n, "pad": most, "bucket": min(1 << (n - 1).bit_length(), most)}[shapes]


class Samples:
    """Generates samples that can be learnt: those of class k have larger values at every k-th position."""

    def __init__(self, seed, shape, outputs):
        self.seed, self.shape, self.outputs = seed, shape, outputs

    def make(self, n, key, into=None):
        """Makes n samples (x, y) from the seed and the key, in the array into if it is given."""
        random = np.random.default_rng([self.seed, key])
        x = np.empty((n, *self.shape), "float32") if into is None else into[:n]
        random.random(out=x, dtype="float32")
        classes = max(self.outputs, 2)  # a model with one output has two
        y = random.integers(0, classes, n)
        flat = x.reshape(n, -1)
        for k in range(classes):
            flat[y == k, k::classes] += 1
        return x, y if self.outputs > 1 else y.astype("float32")[:, None]
