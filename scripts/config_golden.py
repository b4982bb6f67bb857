#!/usr/bin/env python3
"""Write the ConfigProto of TensorFlow itself for each setting of package gpuopts.

Writes gpuopts/testdata/config.json: for each case of gpuopts_test.go the hex of the
tf.compat.v1.ConfigProto with these settings. ``--check`` writes nothing and fails if
the file differs.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

FILE = pathlib.Path(__file__).resolve().parent.parent / "gpuopts" / "testdata" / "config.json"
Rewriter = rewriter_config_pb2.RewriterConfig
Optimizer = config_pb2.OptimizerOptions
TAPE = {"memory_optimizer_target_node_name_scope": "gradient_tape/"}


def rewrite(**fields: Any) -> dict[str, Any]:
    return {"graph_options": {"rewrite_options": fields}}


def xla(level: int, cpu: bool) -> dict[str, Any]:
    return {
        "graph_options": {"optimizer_options": {"global_jit_level": level, "cpu_global_jit": cpu}}
    }


def experimental(**fields: Any) -> dict[str, Any]:
    return {"gpu_options": {"experimental": fields}}


CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "intra threads": {"intra_op_parallelism_threads": 2},
    "inter threads": {"inter_op_parallelism_threads": 1},
    "threads": {"intra_op_parallelism_threads": 2, "inter_op_parallelism_threads": 1},
    "per session": {"use_per_session_threads": True},
    "per session threads": {"inter_op_parallelism_threads": 3, "use_per_session_threads": True},
    "executor": {"experimental": {"executor_type": "SINGLE_THREADED_EXECUTOR"}},
    "grappler off": rewrite(disable_meta_optimizer=True),
    "layout": rewrite(layout_optimizer=Rewriter.OFF),
    "constant folding": rewrite(constant_folding=Rewriter.OFF),
    "shapes": rewrite(shape_optimization=Rewriter.OFF),
    "remapping": rewrite(remapping=Rewriter.OFF),
    "common subgraphs": rewrite(common_subgraph_elimination=Rewriter.OFF),
    "arithmetic": rewrite(arithmetic_optimization=Rewriter.AGGRESSIVE),
    "dependencies": rewrite(dependency_optimization=Rewriter.OFF),
    "loops": rewrite(loop_optimization=Rewriter.OFF),
    "functions": rewrite(function_optimization=Rewriter.OFF),
    "implementations": rewrite(implementation_selector=Rewriter.OFF),
    "conditional code": rewrite(experimental_conditional_code_motion=Rewriter.OFF),
    "pruning off": rewrite(disable_model_pruning=True),
    "memory none": rewrite(memory_optimization=Rewriter.NO_MEM_OPT),
    "memory manual": rewrite(memory_optimization=Rewriter.MANUAL, **TAPE),
    "memory swapping": rewrite(memory_optimization=Rewriter.SWAPPING_HEURISTICS),
    "memory recomputation": rewrite(memory_optimization=Rewriter.RECOMPUTATION_HEURISTICS, **TAPE),
    "memory scheduling": rewrite(memory_optimization=Rewriter.SCHEDULING_HEURISTICS),
    "memory heuristics": rewrite(memory_optimization=Rewriter.HEURISTICS, **TAPE),
    "bfloat16": rewrite(auto_mixed_precision_onednn_bfloat16=Rewriter.ON),
    "float16 cpu": rewrite(
        auto_mixed_precision_cpu=Rewriter.ON, common_subgraph_elimination=Rewriter.OFF
    ),
    "float16 gpu": rewrite(auto_mixed_precision=Rewriter.ON),
    "xla off": xla(Optimizer.OFF, False),
    "xla on 1": xla(Optimizer.ON_1, True),
    "xla on 2": xla(Optimizer.ON_2, True),
    "memory growth": {"gpu_options": {"allow_growth": True}},
    "fraction": {"gpu_options": {"per_process_gpu_memory_fraction": 0.5}},
    "fraction one": {"gpu_options": {"per_process_gpu_memory_fraction": 1.0}},
    "growth and fraction": {
        "gpu_options": {"allow_growth": True, "per_process_gpu_memory_fraction": 0.3}
    },
    "visible": {"gpu_options": {"visible_device_list": "1,0"}},
    "bfc": {"gpu_options": {"allocator_type": "BFC"}},
    "cuda malloc async": experimental(use_cuda_malloc_async=True),
    "unified memory": experimental(use_unified_memory=True),
    "more than the GPU": {
        "gpu_options": {
            "per_process_gpu_memory_fraction": 1.5,
            "experimental": {"use_unified_memory": True},
        }
    },
    "virtual": experimental(virtual_devices=[{"memory_limit_mb": [1024, 512]}, {}]),
    "all": {
        "intra_op_parallelism_threads": 2,
        "inter_op_parallelism_threads": 1,
        "use_per_session_threads": True,
        "experimental": {"executor_type": "SINGLE_THREADED_EXECUTOR"},
        "graph_options": {
            "optimizer_options": {"global_jit_level": Optimizer.ON_2, "cpu_global_jit": True},
            "rewrite_options": {
                "layout_optimizer": Rewriter.ON,
                "loop_optimization": Rewriter.OFF,
                "experimental_conditional_code_motion": Rewriter.OFF,
                "disable_model_pruning": True,
                "memory_optimization": Rewriter.NO_MEM_OPT,
                "auto_mixed_precision_onednn_bfloat16": Rewriter.ON,
            },
        },
        "gpu_options": {
            "allow_growth": True,
            "visible_device_list": "0",
            "allocator_type": "BFC",
            "experimental": {
                "virtual_devices": [{"memory_limit_mb": [2048]}],
                "use_unified_memory": True,
            },
        },
    },
}


def encoded() -> dict[str, str]:
    """The bytes of each case, in hex."""
    return {
        name: config_pb2.ConfigProto(**fields).SerializeToString(deterministic=True).hex()
        for name, fields in CASES.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    text = json.dumps(encoded(), indent=2) + "\n"
    if args.check:
        if FILE.read_text() != text:
            print(
                f"{FILE.name} is not what this TensorFlow writes: run {sys.argv[0]}",
                file=sys.stderr,
            )
            return 1
        return 0
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
