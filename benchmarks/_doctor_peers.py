"""What rldoctor, rlprobe and rlwatch say about the runs of benchmarks/doctor.py.

    PYTHON benchmarks/_doctor_peers.py TOOL < runs.json

PYTHON has the tool installed; nothing of Telescope is imported here. Input: a list of
{"name", "algorithm", "settings", "rows"}; a row holds a step's numbers under the names of `NAMES`.
Output: by run, [[finding, severity], …], the tool's own order, the first is its top finding.

The numbers are handed over under each tool's own names, so that none is left out because of how it
is called. rlwatch's windows are 20 to 100 steps long; they are divided by 4 for runs of 40 steps.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import tempfile
from typing import Any

NAMES = {  # ours: rldoctor's, rlprobe's, rlwatch's
    "reward/score_mean": ("reward_mean", "reward_mean", "reward_mean"),
    "score_std": ("reward_std", "reward_std", "reward_std"),
    "reward/kl": ("kl", "kl_mean", "kl_divergence"),
    "actor/entropy": ("entropy", "entropy_mean", "entropy"),
    "actor/pg_clipfrac": ("pg_clipfrac", "clip_fraction", "clip_fraction"),
    "actor/pg_loss": ("policy_loss", "loss", "loss"),
    "actor/grad_norm": ("grad_norm", "grad_norm", "grad_norm"),
    "actor/lr": ("lr", "lr", "learning_rate"),
    "credit/advantage_mean": ("advantage_mean", "adv_mean", None),
    "credit/advantage_std": ("advantage_std", "adv_std", "advantage_std"),
    "flat_groups": ("zero_var_group_frac", "zero_variance_group_frac", None),
    "critic/explained_variance": ("value_explained_var", "value_explained_variance", None),
    "critic/vf_loss": (None, "value_loss", None),
    "critic/vf_clipfrac": (None, "value_clip_fraction", None),
    "response/length_mean": ("response_len_mean", "completion_len_mean", None),
    "length_max": ("response_len_max", "completion_len_max", None),
    "response/truncated": ("response_len_clip_ratio", "truncation_rate", None),
    "timing/step": ("time_per_step", "step_time_s", None),
    "eval/sampled_accuracy": ("eval_score", None, None),
}
TOOLS = ("rldoctor", "rlprobe", "rlwatch")
SHORTER = 4
"""rlwatch's windows are divided by this."""

RIGHT: dict[str, dict[str, tuple[str, ...]]] = {
    "lr-high": {
        "rldoctor": ("clip_saturation", "gradient_pathology", "kl_drift"),
        "rlprobe": ("CLIP_SATURATION", "GRAD_PATHOLOGY", "KL_BLOWUP"),
        "rlwatch": ("kl_explosion", "gradient_norm_spike"),
    },
    "lr-low": {"rldoctor": ("plateau",)},
    "bonus": {},
    "cut-off": {"rldoctor": ("length_pathology",), "rlprobe": ("TRUNCATION_STARVE",)},
    "dead-critic": {"rlprobe": ("VALUE_DIVERGENCE",)},
    "constant": {
        "rldoctor": ("advantage_collapse", "plateau"),
        "rlprobe": ("REWARD_STD_DEATH", "ADV_COLLAPSE"),
    },
    "partial": {
        "rldoctor": ("reward_hacking",),
        "rlprobe": ("FORMAT_GAMING", "REWARD_HACK_LENGTH"),
        "rlwatch": ("reward_hacking", "reward_mean_drift"),
    },
    "flat-groups": {"rldoctor": ("advantage_collapse",), "rlprobe": ("DEGENERATE_GROUPS",)},
    "stale": {"rldoctor": ("clip_saturation",), "rlprobe": ("CLIP_SATURATION",)},
    "value-clip": {"rlprobe": ("VALUE_DIVERGENCE",)},
    "reward-scale": {"rlprobe": ("VALUE_DIVERGENCE",)},
    "grad-clip": {"rldoctor": ("plateau", "gradient_pathology"), "rlprobe": ("GRAD_PATHOLOGY",)},
    "warm-up": {"rldoctor": ("plateau",)},
    "reference": {
        "rldoctor": ("kl_drift",),
        "rlprobe": ("KL_BLOWUP", "REF_POLICY_DRIFT_ASYMMETRY"),
        "rlwatch": ("kl_explosion",),
    },
    "copies": {"rldoctor": ("advantage_collapse",), "rlprobe": ("DEGENERATE_GROUPS",)},
    "eos-ignored": {"rldoctor": ("length_pathology",), "rlprobe": ("TRUNCATION_STARVE",)},
    "one-part": {"rldoctor": ("reward_composition",)},
    "cold": {
        "rldoctor": ("entropy_collapse",),
        "rlprobe": ("ENTROPY_COLLAPSE",),
        "rlwatch": ("entropy_collapse",),
    },
    "reward-sign": {"rldoctor": ("reward_hacking",), "rlwatch": ("reward_hacking",)},
    "kl-100": {"rldoctor": ("plateau",)},
    "empty": {
        "rldoctor": ("length_pathology", "reward_hacking"),
        "rlprobe": ("REWARD_HACK_LENGTH",),
        "rlwatch": ("reward_hacking", "reward_mean_drift"),
    },
    "critic-lr": {"rlprobe": ("VALUE_DIVERGENCE",)},
    "epochs": {
        "rldoctor": ("clip_saturation", "gradient_pathology", "kl_drift"),
        "rlprobe": ("CLIP_SATURATION", "GRAD_PATHOLOGY", "KL_BLOWUP"),
        "rlwatch": ("kl_explosion", "gradient_norm_spike"),
    },
    "huge": {
        "rldoctor": ("gradient_pathology",),
        "rlprobe": ("GRAD_PATHOLOGY", "VALUE_DIVERGENCE"),
        "rlwatch": ("gradient_norm_spike",),
    },
    "labels": {"rldoctor": ("reward_hacking", "plateau"), "rlwatch": ("reward_hacking",)},
}
"""Findings of each tool that come near the planted fault: generous where they have no such check."""


def renamed(row: dict[str, float], tool: str) -> dict[str, float]:
    """A step's numbers under the tool's names."""
    column = TOOLS.index(tool)
    found = {}
    for ours, names in NAMES.items():
        theirs = names[column]
        if theirs is not None and row.get(ours) is not None:
            found[theirs] = row[ours]
    return found


def rldoctor(run: dict[str, Any]) -> list[tuple[str, str]]:
    from rl_doctor.diagnosis import diagnose
    from rl_doctor.ingest.base import run_from_records

    records = [{"step": row["step"], **renamed(row, "rldoctor")} for row in run["rows"]]
    for record, row in zip(records, run["rows"], strict=True):
        record |= {f"rewards/{name}/mean": value for name, value in row["parts"].items()}
    config = {"algorithm": run["algorithm"], **run["settings"]}
    found = diagnose(run_from_records(records, config=config, name=run["name"])).problems
    return [(finding.detector, finding.severity.name.lower()) for finding in found]


def rlprobe(run: dict[str, Any]) -> list[tuple[str, str]]:
    from rlprobe.doctor.engine import diagnose_view
    from rlprobe.doctor.runview import RunView
    from rlprobe.schemas import RunManifest, StepRecord

    manifest = RunManifest(run_id=run["name"], created_at="", algorithm=run["algorithm"])
    records = [
        StepRecord(step=row["step"], reward_components=row["parts"], **renamed(row, "rlprobe"))
        for row in run["rows"]
        if "actor/pg_loss" in row
    ]
    found = diagnose_view(RunView(manifest, records))
    return [(finding.signature_id, str(finding.severity)) for finding in found]


def rlwatch(run: dict[str, Any]) -> list[tuple[str, str]]:
    from rlwatch.config import RLWatchConfig
    from rlwatch.core import RLWatch

    with tempfile.TemporaryDirectory() as folder:
        config = RLWatchConfig(run_id=run["name"], framework="manual")
        config.storage.log_dir = folder
        for section in vars(config).values():
            for name in ("consecutive_steps", "rolling_window", "baseline_window", "warmup_steps"):
                if hasattr(section, name):
                    setattr(section, name, getattr(section, name) // SHORTER)
        monitor = RLWatch(config)
        alerts = []
        for row in run["rows"]:
            if "actor/pg_loss" in row:
                alerts += monitor.log_step(row["step"], **renamed(row, "rlwatch"))
        monitor.stop()
    alerts.sort(key=lambda alert: alert.severity != "critical")
    return [(alert.detector, alert.severity) for alert in alerts]


def main() -> None:
    logging.disable(logging.CRITICAL)
    judge = {"rldoctor": rldoctor, "rlprobe": rlprobe, "rlwatch": rlwatch}[sys.argv[1]]
    found = {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for run in json.load(sys.stdin):
            found[run["name"]] = judge(run)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
