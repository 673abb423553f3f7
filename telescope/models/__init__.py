"""Hugging Face models as actor, critic and reference: loading, the forward passes, and what makes them fast."""

import sys

if (
    "sklearn" not in sys.modules
):  # transformers would import it for one metric of assisted generation: up to 2 s of every start
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        import transformers.generation.candidate_generator  # noqa: F401
    finally:
        del sys.modules["sklearn"]
