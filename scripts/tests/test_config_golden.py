"""The bytes that gpuopts is compared with are those of this TensorFlow."""

from __future__ import annotations

import json

import config_golden


def test_bytes_are_of_this_tensorflow() -> None:
    assert json.loads(config_golden.FILE.read_text()) == config_golden.encoded()
