"""Every setting of a run: frozen, typed, unknown names refused. Imports no torch.

A recipe is a TOML file with these sections; `--section.key value` on the command line overrides
it. The settings of estimators and losses come from their definitions (telescope.algorithms), so a
setting exists only where it applies.
"""

from telescope.algorithms.definitions.base import Bins
from telescope.config.code import named_code
from telescope.config.load import (
    CHOICES,
    RENAMED,
    changes,
    checked_toml,
    fields,
    flat,
    load_config,
    load_saved_config,
    merge,
    smoke,
    to_saved_toml,
    to_toml,
    validate,
)
from telescope.config.sections import (
    BUILTIN_RECIPE,
    ActorConfig,
    CheckpointConfig,
    Config,
    CreditConfig,
    CriticConfig,
    DataConfig,
    DoctorConfig,
    EvalConfig,
    EvalSetConfig,
    LedgerConfig,
    LogConfig,
    ModelConfig,
    OptimizerConfig,
    RayConfig,
    RewardConfig,
    RolloutConfig,
    Section,
    WarmStartConfig,
)

__all__ = [
    "BUILTIN_RECIPE",
    "CHOICES",
    "RENAMED",
    "ActorConfig",
    "Bins",
    "CheckpointConfig",
    "Config",
    "CreditConfig",
    "CriticConfig",
    "DataConfig",
    "DoctorConfig",
    "EvalConfig",
    "EvalSetConfig",
    "LedgerConfig",
    "LogConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RayConfig",
    "RewardConfig",
    "RolloutConfig",
    "Section",
    "WarmStartConfig",
    "changes",
    "checked_toml",
    "fields",
    "flat",
    "load_config",
    "load_saved_config",
    "merge",
    "named_code",
    "smoke",
    "to_saved_toml",
    "to_toml",
    "validate",
]
