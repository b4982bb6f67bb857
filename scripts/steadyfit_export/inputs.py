"""The inputs and outputs of a Keras model, and how its functions are traced."""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .checks import random_values
from .names import Names, Refusal, Spec, UsageError, kept_values
from .options import Options


class Inputs:
    """The part of a program that knows the model's inputs and outputs.

    A program traces functions of feeds, which are tensors by the names of signature inputs.
    """

    # Whether the model can be called.
    calls = True
    loss_scale_input = False
    partial = False  # whether a loss is finite for some predictions only
    batch: int | None = None  # the fixed batch size; None if any size is possible

    def _find_inputs(self, options: Options) -> None:
        """Decide the names, dtypes and shapes of the model's inputs; build the model."""
        keras, model, given = self.keras, self.model, options.inputs
        self.names = Names()
        self.size, self._sized, self.takes = 4, {}, True  # of open dimensions; takes: whether the model takes the size
        self.inputs: dict[str, Spec] = {}
        self._symbolic: dict[int, str] = {}  # names of inputs, by id of the tensor in the model
        # A Sequential contains a functional model; other models have no structure of inputs.
        struct = getattr(getattr(model, "_functional", model), "_inputs_struct", None)
        if struct is not None and given is None:
            if isinstance(struct, Mapping) and not any(map(keras.tree.is_nested, struct.values())):
                items = list(struct.items())
                self._pack = lambda flat: dict(zip(struct, flat, strict=True))
            else:
                items = [("/".join(map(str, path)), t) for path, t in keras.tree.flatten_with_path(struct)]
                if not isinstance(struct, Mapping):
                    items = [(t.name, t) for _, t in items]
                self._pack = lambda values: keras.tree.pack_sequence_as(struct, values)
            alone = len(items) == 1 and not isinstance(struct, Mapping)
            for name, tensor in items:
                if alone and re.fullmatch(r"(keras_tensor|input(_layer)?)(_\d+)?|y", name):
                    name = "x"  # Keras made the name, or a label has it
                name = self.names.key(name, "x" if alone else "")
                self._symbolic[id(tensor)] = name
                if tensor.shape and tensor.shape[0] is not None:
                    self.batch = tensor.shape[0]  # for example with a stateful RNN
                dtype = keras.backend.standardize_dtype(tensor.dtype)
                self.inputs[name] = Spec(dtype, tuple(tensor.shape[1:]))
        elif given:
            self.inputs = {self.names.key(name): spec for name, spec in given.items()}
            names = list(given)
            self._pack = lambda flat: flat[0] if len(flat) == 1 else dict(zip(names, flat, strict=True))
            specs = {n: self.tf.TensorSpec([None, *spec.shape], spec.dtype, name=n) for n, spec in self.inputs.items()}
            if self.calls:  # tracing changes no seed; running would
                self._concrete(lambda feeds: model(self._pack(list(feeds.values())), training=False), specs)
        else:
            raise Refusal(
                "the model has no keras.Input, so the shapes of its inputs are unknown",
                found=f"{type(model).__name__} without input shapes",
                do="start it with keras.Input(shape), or pass --input x=float32[...]",
            )
        others = {"y": True, "sample_weight": self.sample_weight is not None, "loss_scale": self.loss_scale_input}
        for name in map(self.names.name, self.inputs):
            if others.get(name):
                raise UsageError(f"an input is called {name!r}, like another of the step: rename that keras.Input")
        self.model_dtypes = {name: spec.dtype for name, spec in self.inputs.items()}
        for name, dtype in self.by_key("dtype", options.input_dtypes, self.inputs).items():
            self.inputs[name] = Spec(dtype, self.inputs[name].shape)

    def by_key(self, what: str, given: Mapping[str, Any] | None, keys: Iterable[str]) -> dict[str, Any]:
        """The given entries, under the keys of the names of inputs or labels that they have."""
        named = {self.names.name(key): key for key in keys}
        known = {key: key for key in keys if key == "x"} | named
        for name in given or {}:
            if name not in known:
                raise UsageError(f"a {what} for {name!r}; there are {', '.join(named)}")
        return {known[name]: value for name, value in (given or {}).items()}

    def _find_size(self) -> None:
        """Find a size for open dimensions that the model takes, and the shapes of outputs for it."""
        if not self.calls or not any(None in spec.shape for spec in self.inputs.values()):
            return
        self.takes, random = False, np.random.default_rng(0)
        for size in (4, 8, 16, 32, 64, 128, 256, 5, 6, 7, 12, 60, 420):
            specs = {
                name: self.tf.TensorSpec([self.batch, *(d or size for d in spec.shape)], spec.dtype)
                for name, spec in self.inputs.items()
            }
            with contextlib.suppress(Exception):  # too small, or not a multiple of what the model needs
                probe = self._concrete(lambda feeds: self._forward(feeds, False), specs)
                shapes = [t.shape for op in probe.graph.get_operations() for t in op.outputs if t.dtype.is_floating]
                if any(shape.rank and shape.rank > 1 and 0 in shape.as_list() for shape in shapes):
                    continue
                sized = {n: tuple(t.shape.as_list()[1:]) for n, t in probe.structured_outputs.items()}
                if not self._sized:
                    self.size, self._sized = size, sized
                batch = {n: [d or 2 for d in spec.shape] for n, spec in specs.items()}
                values = {n: random_values(random, n, specs[n].dtype, shape, None) for n, shape in batch.items()}
                weights = {id(v.value) for v in self.model.weights}
                with kept_values([v for v in probe.graph.variables if id(v) not in weights]):
                    probe(**{n: self.tf.constant(v, specs[n].dtype) for n, v in values.items()})
                self.size, self._sized, self.takes = size, sized, True
                return

    def advice(self) -> str:
        """What to do if the model fails on random values."""
        opened = [(name, spec) for name, spec in self.inputs.items() if None in spec.shape]
        if self.takes or not opened:
            return "run the same step in Python to see the cause"
        flags = [f"--input {self.names.name(n)}={s}".replace("?", "N") for n, s in opened]
        return f"none of the sizes that were tried runs: export with {' '.join(flags)}, where N is a size that the model takes"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a sample of each input and label, with sizes that the model takes."""
        outputs = {label: self._sized.get(output, ()) for output, label in self.label_of.items()}

        def closed(name: str, shape: Sequence[int | None]) -> tuple[int, ...]:
            known = [*outputs.get(name, ()), *[None] * len(shape)]
            return tuple(d or known[i] or self.size for i, d in enumerate(shape))

        found = {name: closed(name, spec.shape) for name, spec in {**self.inputs, **self.labels}.items()}
        if self.sample_weight is not None:
            labels = [found[name] for name in self.labels] or [()]
            sizes = [*labels[0], *[self.size] * len(self.sample_weight.shape)]
            found["sample_weight"] = tuple(d or sizes[i] for i, d in enumerate(self.sample_weight.shape))
        return found

    def _sample(self, spec: Spec, batch: int) -> Any:
        return self.tf.zeros([batch, *(4 if d is None else d for d in spec.shape)], spec.dtype)

    def _check_model(self) -> None:
        model = self.model
        if not model.trainable_variables:
            raise Refusal(
                "the model has nothing to train",
                found=f"{len(model.variables)} variables, none of them trainable",
                do="set trainable=True on the layers that should learn; make weights with self.add_weight, because Keras "
                "does not train a tf.Variable",
            )
        half = [v for v in model.trainable_variables if v.dtype in ("float16", "bfloat16")]
        if half:
            # Gradients would have 16 bits, too, and the loss scale can make them overflow.
            raise Refusal(
                "weights of 16 bits",
                found=f"weight {half[0].path!r} of {half[0].dtype}",
                do="make the layers under mixed_float16 or mixed_bfloat16",
            )

    def _forward(self, feeds: Mapping[str, Any], training: bool) -> dict[str, Any]:
        """Run the model; returns its outputs by name."""
        # Keras passes training only to a call that takes it.
        given = {"training": training} if self.model._call_has_training_arg else {}
        return self._named(self.model(self._x(feeds), **given))

    def _x(self, feeds: Mapping[str, Any]) -> Any:
        """The model's input, in its structure and dtypes."""
        values = []
        for name, dtype in self.model_dtypes.items():
            value = feeds[name]
            values.append(value if value.dtype.name == dtype else self.tf.cast(value, dtype))
        return self._pack(values)

    def _named(self, outputs: Any) -> dict[str, Any]:
        """Outputs by name, in the order in which Keras pairs them with losses and metrics."""
        self.output_keys: dict[str, str] = {}
        nested = isinstance(outputs, Mapping) and any(map(self.keras.tree.is_nested, outputs.values()))
        if nested:
            raise Refusal(
                "the outputs are lists or dictionaries inside of a dictionary",
                found=", ".join(f"{key}: {type(value).__name__}" for key, value in outputs.items()),
                do="return one dictionary with a tensor for each output",
            )
        if isinstance(outputs, Mapping):
            ordered = isinstance(outputs, collections.OrderedDict)
            keys = list(outputs) if ordered else sorted(outputs)
            flat, names = [outputs[key] for key in keys], [self.names.key(key) for key in keys]
            self.output_keys = dict(zip(names, keys, strict=True))
        else:
            flat = self.keras.tree.flatten(outputs)
            names = [self.names.key(name) for name in getattr(self.model, "output_names", None) or []]
            if len(flat) == 1:
                names = ["output"]
            elif len(names) != len(flat):
                names = [f"output_{i}" for i in range(len(flat))]
        if len(set(names)) != len(flat):
            raise UsageError(
                f"two of the outputs {', '.join(names)} have the same name; end the model with one "
                "layer of its own name for each output"
            )
        return dict(zip(names, flat, strict=True))

    def _specs(self, *, labels: bool, lead: Sequence[int | None] = (), step: bool = False) -> dict[str, Any]:
        """TensorSpecs of a signature's inputs, with the leading dimensions and the batch first."""
        specs = dict(self.inputs)
        if labels:
            specs.update(self.labels)
            if self.sample_weight is not None:
                specs["sample_weight"] = self.sample_weight
        result = {
            name: self.tf.TensorSpec([*lead, self.batch, *spec.shape], spec.dtype, name=name)
            for name, spec in specs.items()
        }
        if step and self.loss_scale_input:
            result["loss_scale"] = self.tf.TensorSpec([], "float32", name="loss_scale")
        return result

    def _concrete(self, function: Callable, specs: Mapping[str, Any]) -> Any:
        """Trace function(feeds) under its named inputs."""

        # Grappler does not know the shapes of values that a session feeds. Without this call, it
        # would rewrite other sums than in Keras, and results would round differently.
        def traced(**feeds: Any) -> Any:
            known = {name: self.tf.ensure_shape(feed, feed.shape) for name, feed in feeds.items()}
            return function(known)

        # AutoGraph would rewrite Keras's code slowly and without effect.
        return self.tf.function(traced, autograph=False).get_concrete_function(**specs)

    def _probe_outputs(self) -> None:
        """Find the model's outputs."""
        specs = self._specs(labels=False)
        try:
            probe = self._concrete(lambda feeds: self._forward(feeds, False), specs)
        except (Refusal, UsageError):
            raise
        except Exception as error:
            raise Refusal(
                "the model does not run inside a graph",
                found=f"{type(error).__name__}: {str(error)[:600]}",
                do="replace Python code that needs the values of tensors by keras.ops, and create "
                "variables in __init__ or build(), with self.add_weight",
            ) from error
        self.outputs: dict[str, Spec] = {}
        for name, tensor in probe.structured_outputs.items():
            self.outputs[name] = Spec(tensor.dtype.name, tuple(tensor.shape.as_list()[1:]))
        self._find_size()

    def _states(self) -> list[Any]:
        """The states of stateful RNNs, which are not among the variables of the model."""
        rnns = [v for v in self.model._flatten_layers() if isinstance(v, self.keras.layers.RNN)]
        return [v for layer in rnns if layer.stateful for v in self.keras.tree.flatten(layer.states)]

    def _rows(self) -> dict[str, int]:
        """The rows of Embedding tables, by the name of the integer input that indexes the table
        directly.

        For an index beyond the table, TensorFlow fails on a CPU and returns zeros on a GPU
        (documented at tf.gather). In Keras, negative indices count from the end of the table.
        """
        embedding = self.keras.layers.Embedding
        found: dict[str, int] = {}
        for layer in self.model._flatten_layers():
            if not isinstance(layer, embedding) or type(layer).call is not embedding.call:
                continue  # another call may change its indices
            for node in layer._inbound_nodes:
                for tensor in node.input_tensors:
                    name = self._symbolic.get(id(tensor))
                    if name is not None and "int" in self.inputs[name].dtype:
                        rows = int(layer.input_dim)
                        found[name] = min(rows, found.get(name, rows))
        return found
