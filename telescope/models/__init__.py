"""Hugging Face models as actor, critic and reference: loading, the forward passes, and what makes them fast."""

from telescope.models.imports import import_transformers

import_transformers()
