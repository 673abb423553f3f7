"""What benchmarks/verl_ppo.py changes in verl 0.9.1, each when its module is imported.

verl imports this module in each of its processes (VERL_USE_EXTERNAL_MODULES). Installed files stay
as they are. TELESCOPE_VERL_PATCHES names the patches to apply.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from telescope.peers.on_import import on_import


def critic_attention(module: ModuleType) -> None:
    """verl loads a critic with flash_attention_2 whatever is set: takes what is set."""

    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
        )

    vars(module)["load_valuehead_model"] = load


def no_trl(module: ModuleType) -> None:
    """verl's model patches import names that another version of TRL does not have."""
    vars(module)["is_trl_available"] = lambda: False


def poll(module: ModuleType) -> None:
    """verl looks for finished responses every 2 s, which no setting changes: every 0.02 s."""
    init = module.ReplayBuffer.__init__

    def shorter(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.poll_interval = 0.02

    module.ReplayBuffer.__init__ = shorter


def cross_entropy(module: ModuleType) -> None:
    """Without flash-attn, verl computes log-probs of bfloat16 row by row: takes its kernel alone.

    TELESCOPE_VERL_CROSS_ENTROPY is flash_attn/ops/triton/cross_entropy.py of flash-attn 2.8.3.
    """
    spec = importlib.util.spec_from_file_location(
        "flash_cross_entropy", os.environ["TELESCOPE_VERL_CROSS_ENTROPY"]
    )
    assert spec is not None
    assert spec.loader is not None
    kernel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernel)
    vars(module).update(
        cross_entropy_loss=kernel.cross_entropy_loss,
        FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE=True,  # verl's spelling
    )


# ---- measuring ----

_validated = 0.0
"""Seconds of this process in validations."""


def validation_clock(module: ModuleType) -> None:
    """Adds up the seconds of validations: they are no training time."""
    trainer = getattr(module, "PPOTrainer", None) or module.RayPPOTrainer
    validate = trainer._validate

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _validated
        start = time.time()
        try:
            return validate(self, *args, **kwargs)
        finally:
            _validated += time.time() - start

    trainer._validate = timed


def log_clock(module: ModuleType) -> None:
    """Logs the time, and the seconds of validations so far, next to verl's metrics."""
    log = module.Tracking.log

    def stamped(self: Any, data: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        clock = {"clock/time": time.time(), "clock/validated": _validated}
        return log(self, data | clock, *args, **kwargs)

    module.Tracking.log = stamped


def budget(module: ModuleType) -> None:
    """Ends the V1 trainer with the step that fills TELESCOPE_VERL_SECONDS of training."""
    limit = float(os.environ["TELESCOPE_VERL_SECONDS"])
    trainer = module.PPOTrainer
    compute_metrics = trainer._compute_metrics
    spent = 0.0

    def counted(self: Any, batch: Any, metrics: Any, timing: Any, *args: Any, **kw: Any) -> Any:
        nonlocal spent
        spent += timing["step"]
        if spent + timing["step"] >= limit:
            self.total_training_steps = min(self.total_training_steps, self.global_steps + 1)
        return compute_metrics(self, batch, metrics, timing, *args, **kw)

    trainer._compute_metrics = counted


Patch = Callable[[ModuleType], None]
V1 = "verl.trainer.ppo.v1.trainer_base"
LEGACY = "verl.trainer.ppo.ray_trainer"
PATCHES: dict[str, list[tuple[str, Patch]]] = {
    "critic-attention": [("verl.utils.model", critic_attention)],
    "no-trl": [("verl.utils.import_utils", no_trl)],
    "poll": [("verl.trainer.ppo.v1.replay_buffer", poll)],
    "cross-entropy": [("verl.utils.torch_functional", cross_entropy)],
    "clock": [
        (V1, validation_clock),
        (LEGACY, validation_clock),
        ("verl.utils.tracking", log_clock),
    ],
    "budget": [(V1, budget)],
}
"""Name -> what is patched, once which module is imported."""


def install() -> None:
    for name in filter(None, os.environ.get("TELESCOPE_VERL_PATCHES", "").split(",")):
        for module, patch in PATCHES[name]:
            on_import({module: patch})


install()
