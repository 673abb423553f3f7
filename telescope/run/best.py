"""The best checkpoint by `eval.best`, and early stopping by `eval.patience`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from telescope.config import EvalConfig
from telescope.errors import TelescopeError


class Best:
    """The best evaluation so far, and how many have passed since."""

    def __init__(self, config: EvalConfig) -> None:
        self.config = config
        self.step: int | None = None
        self.value: float | None = None
        self.waited = 0
        """Evaluations since the best one."""

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuses an `eval.best` that the evaluation does not have."""
        if self.config.best is not None and self.config.best not in metrics:
            raise TelescopeError(
                f"eval.best = {self.config.best!r} is no metric of the evaluation: "
                f"there are {', '.join(metrics) or 'none, because there are no held-out prompts'}"
            )

    def note(self, step: int, metrics: Mapping[str, float]) -> None:
        """Counts one evaluation. An equal value is no improvement; NaN is the worst."""
        if self.config.best is None:
            return
        value = metrics[self.config.best]
        if self._improves(value):
            self.step = step
            self.value = value
            self.waited = 0
        else:
            self.waited += 1

    def _improves(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.value is None:
            return True
        return value > self.value if self.config.best_mode == "max" else value < self.value

    @property
    def ends_run(self) -> bool:
        """Whether `eval.patience` is used up."""
        return 0 < self.config.patience <= self.waited

    def reason(self) -> str:
        """Why the run ends early."""
        return (
            f"{self.config.best} has not improved in {self.waited} evaluations (eval.patience): "
            f"{self.summary()}"
        )

    def summary(self) -> str:
        """The best evaluation in words; empty if there is none."""
        if self.value is None:
            return ""
        return f"the best is {self.value:.4g} at step {self.step}"

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        chosen = {"metric": self.config.best, "mode": self.config.best_mode}
        return {**chosen, "step": self.step, "value": self.value, "waited": self.waited}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned, unless another metric is chosen now."""
        if (state.get("metric"), state.get("mode")) == (self.config.best, self.config.best_mode):
            self.step = state["step"]
            self.value = state["value"]
            self.waited = state["waited"]
