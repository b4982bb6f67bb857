"""What the Keras programs that train share: their options, a compiled model, its data and its loops."""

import itertools

import common
import steadyfit_export as export
from common import keras, tf

OPTIONS = {"loop": ["fit", "function"], "mixed": ["float32", "mixed_bfloat16", "mixed_float16"]}
OPTIONS |= {"data": ["numpy"], "prefetch": "0", **{name: [0, 1] for name in ("del", "eager", "jit")}}


def parse(doc, **own):
    """Parses the options of every program that trains, and its own."""
    options = common.parse(doc, **{**OPTIONS, **own})
    options.delete = getattr(options, "del")
    if options.prefetch != "0" and options.data not in ("tfdata", "from_generator"):
        raise SystemExit(f"--prefetch is for tf.data, and not for --data {options.data}")
    keras.config.set_dtype_policy(options.mixed)
    if options.eager:
        tf.config.run_functions_eagerly(True)
    return options


class Learner:
    """A compiled model, and its training by Model.fit or by a step of tf.function."""

    def __init__(self, name, options):
        self.options = options
        self.model, described = common.make_model(name)
        self.loss = export.as_loss(described["loss"], described.get("from_logits", False))
        self.model.compile(
            optimizer=keras.optimizers.Adam(described.get("learning_rate", 1e-3)),
            loss=self.loss,
            metrics=described.get("metrics"),
            jit_compile=bool(options.jit),
            run_eagerly=bool(options.eager),
        )
        self.model.optimizer.build(self.model.trainable_variables)  # a traced step must not create variables
        if options.loop == "function":
            self.train = tf.function(self.train, jit_compile=bool(options.jit))
            self.test = tf.function(self.test, jit_compile=bool(options.jit))

    def step(self, x, y):
        """Trains on a batch, and returns the loss."""
        if self.options.loop == "fit":
            return self.model.fit(x, y, batch_size=len(x), verbose=0).history["loss"][0]
        x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
        loss = self.train(x, y)
        value = float(loss)
        if self.options.delete:
            del x, y, loss  # often recommended, though they go out of scope here
        return value

    def train(self, x, y):
        model, optimizer = self.model, self.model.optimizer
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = self.loss(y, predictions)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        if self.options.delete:
            del tape, gradients, predictions, scaled
        return loss

    def test(self, x, y):
        return self.loss(y, self.model(x, training=False))


def batches(x, y, n):
    """Yields batches of n samples without end."""
    while True:
        for start in range(0, len(x), n):
            yield x[start : start + n], y[start : start + n]


def feed(options, x, y, shuffle=0):
    """Returns the arguments of Model.fit for arrays, as the option --data says."""
    if options.data == "numpy":
        # With a smaller batch, the epochs of Keras have as many steps as with the whole one.
        steps = None if options.batch == options.whole_batch else -(-len(x) // options.whole_batch)
        return {"x": x, "y": y, "batch_size": options.batch, "steps_per_epoch": steps}
    if options.data == "generator":
        return {"x": batches(x, y, options.batch), "steps_per_epoch": options.epoch}
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.shuffle(shuffle, seed=options.seed) if shuffle else data
    data = prefetch(options, data.batch(options.batch))
    if len(data) == options.epoch:
        return {"x": data}
    return {"x": data.repeat() if len(data) % options.epoch else data, "steps_per_epoch": options.epoch}


def prefetch(options, data):
    """Adds the stage of the option --prefetch, a number of batches or auto, to a pipeline."""
    if options.prefetch == "0":
        return data
    return data.prefetch(tf.data.AUTOTUNE if options.prefetch == "auto" else int(options.prefetch))


class Steps(keras.callbacks.Callback):
    """Keeps the first and the last loss, and ends the training after the steps of the options."""

    def __init__(self, options, after_step):
        super().__init__()
        self.options, self.after_step, self.done = options, after_step, 0

    def on_train_batch_end(self, batch, logs=None):
        self.after_step(logs)
        self.done += 1
        self.last = float(logs["loss"])
        self.first = self.last if self.done == 1 else self.first
        common.end_step(self.done, self.options)
        if self.done == self.options.steps:
            self.model.stop_training = True


def train(learner, options, data, after_step=lambda logs: None, validation=None, callbacks=()):
    """Trains with data, arguments of Model.fit, and returns the first and the last loss.

    In the loop fit, a loss is the mean of the epoch so far, as Keras reports it.
    """
    steps = Steps(options, after_step)
    if options.loop == "fit":
        more = {"validation_data": validation, "validation_batch_size": 64, "callbacks": [*callbacks, steps]}
        # Epochs of Keras may be shorter than those of the options, so their number is only a limit.
        learner.model.fit(**data, **more, epochs=options.steps, verbose=0)
        return steps.first, steps.last
    steps.set_model(learner.model)
    again = itertools.chain.from_iterable(itertools.repeat(data["x"]))
    endless = batches(data["x"], data["y"], options.batch) if "y" in data else again
    while steps.done < options.steps:
        steps.on_train_batch_end(steps.done, {"loss": learner.step(*next(endless))})
        if validation and steps.done % options.epoch == 0:
            x, y = validation
            for i in range(0, len(x), 64):
                float(learner.test(tf.convert_to_tensor(x[i : i + 64]), tf.convert_to_tensor(y[i : i + 64])))
    return steps.first, steps.last
