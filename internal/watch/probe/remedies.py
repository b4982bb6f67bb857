"""Changes that `steadyfit watch --remedies` makes in a Python program, to see whether its memory grows less with them.

The probe loads this module in the runs of a trial only. Each change counts how often it acted. All runs of a trial have
marks at the same steps, so that they can be compared.
"""

import functools
import gc
import math
import sys

FIT = {
    "keras.src.backend.tensorflow.trainer": "TensorFlowTrainer",
    "keras.src.backend.torch.trainer": "TorchTrainer",
    "keras.src.backend.jax.trainer": "JAXTrainer",
    "tf_keras.src.engine.training": "Model",
}
FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
EVERY = 50  # steps between two collections of a loop without epochs


class Remedies:
    def __init__(self, probe):
        self.probe = probe

    def act(self):
        self.probe.counts["remedy"] += 1

    def hook(self, module, change):
        """Calls change(module) after the probe's own hook of a module."""
        before = self.probe.HOOKS.get(module, lambda m: None)
        self.probe.HOOKS[module] = lambda m: (before(m), change(m))

    def after(self, module, owner, method, do):
        """Calls do(self) after a method. It has acted if the result is true."""

        def done(of, args, kwargs):
            if do(of):
                self.act()

        self.hook(module, lambda m: self.probe.after(getattr(m, owner), method, done))

    def regular(self, kind, every):
        """Makes a mark each so many steps of a kind, and looks for no containers. "each" is every kind, and its first step."""
        step = self.probe.Marks.step
        self.probe.Marks.measured = kind == "each"

        def regular_step(marks, of, n=1):
            done = marks.steps[of]
            due = done // every < (done + n) // every
            marks.next = 0.0 if of == kind and due or kind == "each" and (due or not done) else math.inf
            step(marks, of, n)

        self.probe.Marks.step = regular_step
        self.probe.Snapshots.due = lambda snapshots, now: False

    # The remedies

    def collect(self):
        def now(of):
            gc.collect()
            return True

        for module, owner in FIT.items():
            self.after(module, owner, "fit", now)
        for module in ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks"):
            self.after(module, "CallbackList", "on_epoch_end", now)
        step = self.probe.Marks.step

        def collecting_step(marks, of, n=1):
            step(marks, of, n)
            if not self.probe.depth("keras") and marks.steps[of] % EVERY == 0:
                gc.collect()
                self.act()

        self.probe.Marks.step = collecting_step

    def clear_session(self):
        def clear(package, of):
            sys.modules[package].backend.clear_session()
            return True

        for module, owner in FIT.items():
            self.after(module, owner, "fit", functools.partial(clear, module.split(".")[0]))

    def graph(self):
        def off(model):
            eager, model.run_eagerly = model.run_eagerly, False
            return eager

        def functions(module):
            module.run_functions_eagerly = lambda run_eagerly: self.act()

        self.after("keras.src.trainers.trainer", "Trainer", "compile", off)
        self.hook("tensorflow.python.eager.polymorphic_function.eager_function_run", functions)

    def jit_off(self):
        def off(of):
            jit, of._jit_compile = of._jit_compile, False
            return jit

        self.after("keras.src.trainers.trainer", "Trainer", "compile", off)
        self.after(FUNCTION, "Function", "__init__", off)

    def reduce_retracing(self):
        def on(function):
            reduces, function._reduce_retracing = function._reduce_retracing, True
            code = getattr(function.python_function, "__code__", None)
            return not reduces and code and self.probe.own(code.co_filename)

        self.after(FUNCTION, "Function", "__init__", on)

    def tensors(self):
        def change(module):
            call = module.Function.__call__

            @functools.wraps(call)
            def __call__(function, *args, **kwargs):
                numbers = any(type(a) in (int, float) for a in (*args, *kwargs.values()))
                if numbers and function.experimental_get_tracing_count() > 1:
                    tf = sys.modules["tensorflow"]
                    for dtype in function.__dict__.setdefault("_steadyfit_types", [tf.int32, tf.float32]):
                        try:
                            given = [tensor(tf, a, dtype) for a in args]
                            result = call(function, *given, **{k: tensor(tf, a, dtype) for k, a in kwargs.items()})
                        except (TypeError, ValueError):  # of tracing: the function takes no such tensor
                            continue
                        function._steadyfit_types = [dtype]
                        self.act()
                        return result
                    function._steadyfit_types = []
                return call(function, *args, **kwargs)

            module.Function.__call__ = __call__

        def tensor(tf, a, dtype):
            if type(a) not in (int, float):
                return a
            return tf.constant(a, tf.float32 if type(a) is float else dtype)

        self.hook(FUNCTION, change)


def begin(probe, name, kind, every):
    """Prepares a run of a trial: the remedy with this name, or none, and marks at each so many steps of a kind."""
    remedies = Remedies(probe)
    if kind != "none":
        remedies.regular(kind, int(every))
    if name != "none":
        getattr(remedies, name.replace("-", "_"))()
