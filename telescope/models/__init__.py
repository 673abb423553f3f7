"""Hugging Face models as actor, critic and reference.

load.py     loads them, in one process or sharded over several (parallel.py)
forward.py  the forward passes of the roles, and the one place that shifts by one
value.py    a backbone with a value head
lora.py     adapters
shards.py   tensors on disk
flops.py    what a forward and a training step cost
cache.py, smollm.py  models that are made on this machine
fast/       packed rows, fused kernels, CUDA graphs

May import batch, config, algorithms and errors.
"""

import sys

# transformers would import scikit-learn for one metric of assisted generation: up to 2 s per start.
if "sklearn" not in sys.modules:
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        import transformers.generation.candidate_generator  # noqa: F401
    finally:
        del sys.modules["sklearn"]
