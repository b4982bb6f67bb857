#!/usr/bin/env python3
"""Exports a Keras model as a trainable SavedModel."""

import sys

from steadyfit_export.command import main

sys.exit(main())
