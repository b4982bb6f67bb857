"""The options of an export."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .names import Spec, UsageError, parse_spec


@dataclasses.dataclass
class Options:
    """How a model is exported: the flags of ``steadyfit-export --help``.

    The optimizer, losses and metrics are names, functions or Keras objects; dicts by output for a
    model with several, or for metrics a list with an entry per output. The defaults are those that
    the model was compiled with. lora, quantize and train_only change the model.
    """

    optimizer: Any = None
    loss: Any = None
    metrics: Any = None
    weighted_metrics: Any = None
    learning_rate: float | None = None
    loss_output: str | None = None
    loss_weights: Any = None  # by output, as in Keras compile
    from_logits: bool = False  # for a loss given by name
    inputs: Mapping[str, Spec | str] | None = None  # Spec or "float32[64]"
    labels: Mapping[str, Spec | str] | None = None  # an empty dict: the model's own step takes none
    input_dtypes: Mapping[str, str] | None = None
    input_ranges: Mapping[str, tuple[float, float]] | None = None  # lowest and highest value
    class_names: Sequence[str] | None = None
    sample_weight: bool | str = False  # True for one per sample; "[7]" is a weight for each of 7 labels
    loss_scale_input: bool = False
    micro_batches: bool = True
    xla_batch: int | None = None
    xla_steps: int | None = None
    allow_unused: bool = False
    lora: int | str | None = None
    quantize: str | None = None
    train_only: str | Sequence[str] | None = None
    remat: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "labels"):
            if (specs := getattr(self, name)) is not None:
                setattr(self, name, {n: parse_spec(s) if isinstance(s, str) else s for n, s in specs.items()})
        if self.xla_steps is not None and self.xla_batch is None:
            raise UsageError("xla_steps needs xla_batch")
        if self.remat is not None and self.xla_batch is not None:
            raise UsageError(
                "remat does not apply to the compiled signatures of xla_batch: XLA may merge both "
                "computations; leave one of them out"
            )

    def weight_spec(self) -> Spec | None:
        """The spec of the input sample_weight; None if there is none."""
        if not self.sample_weight:
            return None
        return parse_spec(f"float32{'[]' if self.sample_weight is True else self.sample_weight}")
