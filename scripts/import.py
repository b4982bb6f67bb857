#!/usr/bin/env python3
"""Copies a trained SavedModel back to its Keras model."""

import sys

from steadyfit_export.importing import main

sys.exit(main())
