"""Trains a convolutional model on images that a generator makes anew for each step."""

import itertools

import common
import numpy as np
import training
from common import tf

SHAPE = (224, 224, 3)
SIGNATURE = (tf.TensorSpec((None, *SHAPE), "float32"), tf.TensorSpec((None,), "int64"))


def augmented(image, random):
    """Flips, crops and brightens an image. Each makes a new one, as is common in pipelines."""
    if random.random() < 0.5:
        image = image[:, ::-1].copy()
    height, width, _ = image.shape
    up, left = (int(random.integers(0, side // 8 + 1)) for side in (height, width))
    cropped = np.zeros_like(image)
    cropped[: height - up, : width - left] = image[up:, left:]
    return cropped * np.float32(random.uniform(0.8, 1.2))


def images(samples, options):
    """Yields batches of new images without end."""
    random = np.random.default_rng([options.seed, 5])
    least, most = max(1, options.batch // 4), options.batch * 5 // 4
    buffer = np.empty((most, *SHAPE), "float32") if options.input == "buffer" else None
    for key in itertools.count():
        n = int(random.integers(least, most + 1)) if options.shapes == "varying" else options.batch
        x, y = samples.make(n, key, buffer)
        for i in range(n if options.augment else 0):
            x[i] = augmented(x[i], random)
        if options.input == "tensor" and options.data == "generator":
            yield tf.constant(x), tf.constant(y)
        else:
            yield x, y


def main():
    data = ["generator", "from_generator", "tfdata"]
    own = {"input": ["tensor", "buffer"], "augment": [0, 1], "shapes": ["fixed", "varying"]}
    options = training.parse(__doc__, data=data, **own)
    if options.data != "generator" and options.input == "buffer":
        raise SystemExit("--input buffer is for --data generator")
    if options.data == "tfdata" and (options.augment or options.shapes == "varying"):
        raise SystemExit("--data tfdata has neither --augment 1 nor --shapes varying")

    learner = training.Learner("image-224", options)
    samples = common.Samples(options.seed, SHAPE, 10)
    if options.data == "tfdata":
        return training.train(learner, options, training.feed(options, *samples.make(options.samples, 0)))
    data = images(samples, options)
    if options.data == "from_generator":
        data = tf.data.Dataset.from_generator(lambda: images(samples, options), output_signature=SIGNATURE)
        data = training.prefetch(options, data)
    return training.train(learner, options, {"x": data, "steps_per_epoch": options.epoch})


common.finish(main())
