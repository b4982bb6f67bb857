"""Trains a small model on a large set of samples, which is in memory or in files."""

import pathlib

import common
import numpy as np
import training


def fill(arrays, samples):
    """Generates samples in parts, since the arrays may not fit into memory twice."""
    for start in range(0, len(arrays[0]), 1024):
        n = min(1024, len(arrays[0]) - start)
        for array, part in zip(arrays, samples.make(n, start)):
            array[start : start + n] = part


def main():
    data = ["numpy", "disk", "tfdata", "generator"]
    options = training.parse(__doc__, data=data, rows=1_000_000, scratch="")
    if options.data == "disk" and not options.scratch:
        raise SystemExit("--data disk needs --scratch")
    learner = training.Learner("dense-100-64-1", options)
    samples = common.Samples(options.seed, (100,), 1)
    if options.data != "disk":
        x, y = np.empty((options.rows, 100), "float32"), np.empty((options.rows, 1), "float32")
        fill((x, y), samples)
        return training.train(learner, options, training.feed(options, x, y))
    files = [(pathlib.Path(options.scratch, "x.npy"), 100), (pathlib.Path(options.scratch, "y.npy"), 1)]
    arrays = [np.lib.format.open_memmap(f, "w+", "float32", (options.rows, n)) for f, n in files]
    fill(arrays, samples)
    del arrays  # writes them
    x, y = (np.load(f, mmap_mode="r") for f, _ in files)
    # A mapped file is read when its values are used, which is here.
    data = ((a.copy(), b.copy()) for a, b in training.batches(x, y, options.batch))
    return training.train(learner, options, {"x": data, "steps_per_epoch": options.epoch})


common.finish(main())
