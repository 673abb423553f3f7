"""Every setting of a run: frozen, typed, unknown keys refused. The descriptions are the command line's help.

A recipe is a TOML file with these sections; `--section.key value` on the command line overrides it. Imports no torch.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from telescope.errors import TelescopeError

BUILTIN_RECIPE = Path(__file__).parent / "data" / "arithmetic.toml"


BY_CRITIC = ("gae", "monte_carlo", "td0")
"""Estimators that ask a critic; the others run with one whose values are 0, which costs nothing."""
BY_GROUP = (
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce++_baseline",
    "opo",
    "grpo_passk",
    "gdpo",
    "optimal_token_baseline",
)
"""Estimators that compare the responses of one prompt."""
UNWHITENED = ("grpo", "dr_grpo", "rloo", "remax", "opo", "grpo_passk", "optimal_token_baseline")
"""Estimators whose papers use their advantages as they are."""


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _as_meant(cls, data: Any) -> Any:
        """TOML has no null: the word "none" stands for it, where a setting may be none. And `true` is no number, though Python's is 1."""
        if not isinstance(data, dict):
            return data
        kinds = {
            name: set(typing.get_args(field.annotation) or (field.annotation,))
            for name, field in cls.model_fields.items()
        }
        meant = dict(data)
        for key, value in data.items():
            kind = kinds.get(key, set())
            if type(None) in kind and str(value).lower() == "none":
                meant[key] = None
            elif isinstance(value, bool) and kind and kind <= {int, float, type(None)}:
                meant[key] = str(value).lower()
        return meant


class ModelConfig(Section):
    path: str = Field(
        "builtin",
        min_length=1,
        description="HF causal LM: a folder, a hub name, 'builtin' (tiny, for the built-in tasks) or 'smollm2' (135M, extra `smollm`)",
    )
    critic_path: str | None = Field(
        None, description="backbone of the critic; default: the same as `path`"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of the weights and all they compute; with bfloat16 the optimizer keeps float32 copies",
    )
    lora_rank: int = Field(
        0,
        ge=0,
        description="train LoRA adapters of this rank, all weights frozen (extra `peft`); 0: train the weights",
    )
    lora_alpha: int | None = Field(
        None,
        gt=0,
        description="adapters' output is multiplied by this / lora_rank; default: 2 · lora_rank",
    )
    lora_targets: list[str] = Field(
        [],
        description="names of the linear layers that get adapters; none: all but the output layer",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="keep only each layer's input for the gradient: less memory, a third more work",
    )
    compile: bool = Field(
        False,
        description="torch.compile each layer, tens of seconds at the start; measure whether it pays",
    )
    cuda_graphs: bool = Field(
        True, description="small forward and backward passes on a GPU are replayed as CUDA graphs"
    )
    trust_remote_code: bool = Field(
        False, description="run model code that comes with the checkpoint"
    )


class DataConfig(Section):
    files: list[str] = Field(
        [],
        description="training prompts: parquet or jsonl files; none: `task`, or else the built-in task",
    )
    eval_files: list[str] = Field(
        [], description="held-out prompts for `eval`; none with `files`: no evaluation"
    )
    prompt_key: str = Field(
        "prompt", description="column with the prompt, as text or as chat messages"
    )
    max_prompt_tokens: int = Field(512, ge=1, description="longest prompt")
    overlong: Literal["drop", "error"] = Field(
        "drop", description="what happens to longer prompts; dropped ones are counted"
    )
    task: str | None = Field(
        None,
        description="instead of files: a task of reasoning-gym, e.g. 'chain_sum' (extra `gym`; docs/extending.md)",
    )
    options: dict[str, Any] = Field(
        {}, description="task: reasoning-gym's own, e.g. {max_terms = 2}"
    )
    size: int = Field(
        10_000, ge=1, description="task: different problems made to train on, if it has so many"
    )
    instruction: str | None = Field(
        None, description="task: system message before each problem; none: the problem alone"
    )
    answer: str | None = Field(
        None,
        description="task: regular expression whose last match in the response is scored; none: what <answer> tags hold, or else all of it",
    )
    shuffle: bool = Field(True, description="new order every epoch, from the seed")


class RolloutConfig(Section):
    batch_size: int = Field(256, ge=1, description="prompts per step")
    n: int = Field(1, ge=1, description="samples per prompt")
    max_response_tokens: int = Field(
        512, ge=1, description="a response that reaches it is cut off (`truncated`)"
    )
    temperature: float = Field(1.0, gt=0, description="of sampling, and of every log-prob")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="sample from the smallest set of tokens with this much probability; 1: all",
    )
    top_k: int = Field(0, ge=0, description="sample from the k likeliest tokens; 0: all")
    dynamic_sampling: int = Field(
        0,
        ge=0,
        description="dynamic sampling: replace prompts whose n responses all score alike by further ones; most rounds of it in a step",
    )
    engine: Literal["torch", "vllm"] = Field(
        "torch",
        description="what samples: torch, with the actor's own weights; vllm (extra `vllm`), with a copy renewed after each update",
    )
    environment: str | None = Field(
        None,
        description="tools that answer while the policy writes: 'calculator', 'search', 'module:Class' or 'file.py:Class'; none: no tools",
    )
    max_turns: int = Field(
        4, ge=2, description="environment: turns of the policy, the one with its answer included"
    )
    tool_seconds: float = Field(
        10.0,
        gt=0,
        description="environment: a tool that takes longer is answered by a message about it",
    )
    corpus: str | None = Field(
        None,
        description="search: jsonl or parquet file with a `text` column, or a folder that bm25s saved",
    )
    passages: int = Field(3, ge=1, description="search: passages that a query is answered with")
    one_step_off_policy: bool = Field(
        False,
        description="sample step k+1 while step k trains, by weights that are one update older; needs ray.samplers",
    )
    cuda_graphs: bool = Field(
        True,
        description="on a GPU, sample by captured graphs; false: step by step, which is slower",
    )
    gpu_memory_utilization: float = Field(
        0.8,
        gt=0,
        lt=1,
        description="of the free GPU memory the sampler may use; further prompts wait their turn",
    )


class RewardConfig(Section):
    functions: list[str] = Field(
        [],
        description="reward functions, 'module:function', 'file.py:function', or the address of a server, 'https://host/path' or "
        "'name=https://…'; none: the built-in task's verdict and sum",
    )
    timeout: float = Field(60.0, gt=0, description="seconds that a reward server may be silent")
    retries: int = Field(
        3, ge=0, description="further tries where a reward server fails, after 1, 2, 4, … s"
    )
    model: str | None = Field(
        None, description="HF sequence-classification reward model, added to the functions"
    )
    micro_batch_tokens: int = Field(
        16_384, ge=1, description="most tokens in one forward of the reward model"
    )
    weights: dict[str, float] = Field(
        {},
        description="weight of each part by name (function name, or 'model'); default 1 each, built-in 0.5",
    )
    normalise: bool = Field(
        False, description="(score − μ)/σ, both of all responses trained on so far"
    )
    clip: float | None = Field(
        None, gt=0, description="then cut the score of a response to ± this; none: no clipping"
    )
    overlong_tokens: int = Field(
        0,
        ge=0,
        description="then take off a penalty that grows over this many last tokens before the limit; 0: none",
    )
    overlong_penalty: float = Field(
        1.0, gt=0, description="that penalty at rollout.max_response_tokens"
    )
    attention: str | None = Field(
        None,
        description="for credit.estimator = 'attention': a function like a reward's that gives each response token its share of the credit",
    )


class CreditConfig(Section):
    estimator: Literal[
        "gae", "monte_carlo", "td0", "grpo", "dr_grpo", "rloo", "reinforce++", "reinforce++_baseline", "remax", "opo", "grpo_passk",
        "gdpo", "optimal_token_baseline", "uniform", "last_token", "attention",
    ] = Field("gae", description="how rewards, and values where it asks a critic, become advantages")  # fmt: skip
    gamma: float = Field(
        1.0,
        ge=0,
        le=1,
        description="discount per action token; estimators that spread the outcome know none",
    )
    lam: float = Field(
        0.95, ge=0, le=1, description="GAE λ: 0 trusts the critic, 1 the observed reward"
    )
    lam_critic: float | None = Field(
        None, ge=0, le=1, description="GAE λ of the critic's targets; default: the same"
    )
    lam_alpha: float | None = Field(
        None,
        gt=0,
        description="GAE λ by length in place of lam: 1 − 1/(this × tokens of the response)",
    )
    last_k: int = Field(
        1, ge=1, description="last_token: how many tokens at the end share the outcome"
    )
    whiten: bool | Literal["auto"] = Field(
        "auto",
        description="actor uses (A − μ)/σ over the whole batch; false: raw A; auto: unless the estimator's paper leaves A as it is",
    )
    bootstrap_truncated: bool = Field(
        False, description="a cut-off response ends with V of its last state instead of 0"
    )
    kl_coef: float = Field(0.02, ge=0, description="β: KL penalty in the token rewards; 0: none")
    kl_kind: Literal["k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl"] = Field(
        "k1", description="KL estimate in the rewards"
    )
    kl_target: float | None = Field(
        None, gt=0, description="adapt β towards this KL per token; default: β is fixed"
    )
    kl_horizon: int = Field(10_000, ge=1, description="samples over which β adapts")

    @property
    def by_critic(self) -> bool:
        return self.estimator in BY_CRITIC

    @property
    def whitens(self) -> bool:
        return self.estimator not in UNWHITENED if self.whiten == "auto" else self.whiten


class OptimizerConfig(Section):
    lr: float = Field(1e-6, gt=0, description="learning rate after warm-up")
    warmup_steps: int = Field(0, ge=0, description="steps of linear learning-rate warm-up")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="learning rate after warm-up: stays, or falls towards 0 at the end"
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW's")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this norm")
    epochs: int = Field(1, ge=1, description="passes over each rollout batch")
    minibatches: int = Field(1, ge=1, description="optimizer steps per pass")
    micro_batch_tokens: int = Field(
        16_384,
        ge=1,
        description="most tokens in one forward and backward; changes memory, not results",
    )


class ActorConfig(OptimizerConfig):
    loss: Literal[
        "clip",
        "cpi",
        "kl_penalty",
        "gspo",
        "cispo",
        "sapo",
        "geo_mean",
        "clip_cov",
        "kl_cov",
        "dppo_tv",
        "dppo_kl",
        "dro",
    ] = Field(
        "clip",
        description="clip: PPO; cpi: the unclipped TRPO/CPI surrogate; the others: docs/algorithms.md",
    )
    clip_low: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="ratio is clipped below 1 − this; geo_mean: its log below −this; dppo: divergence",
    )
    clip_high: float = Field(
        0.2,
        ge=0,
        description="ratio is clipped above 1 + this; geo_mean: its log above this; dppo: divergence",
    )
    dual_clip: float | None = Field(
        None, gt=1, description="clip: bound the loss of tokens with A < 0 at this many |A|"
    )
    beta: float = Field(
        1.0,
        ge=0,
        description="kl_penalty, kl_cov, dro: weight of the loss's own penalty for leaving π_old",
    )
    beta_target: float | None = Field(
        None,
        gt=0,
        description="kl_penalty: double or halve beta to keep KL(π_old ‖ π) of a step near this",
    )
    tau_positive: float = Field(1.0, gt=0, description="sapo: steepness of the gate where A > 0")
    tau_negative: float = Field(1.05, gt=0, description="sapo: steepness of the gate where A < 0")
    cov_share: float = Field(
        0.0002,
        gt=0,
        le=1,
        description="clip_cov, kl_cov: share of the tokens that are treated apart",
    )
    cov_low: float = Field(1.0, description="clip_cov: tokens of a covariance above this")
    cov_high: float = Field(5.0, description="clip_cov: and below this may be chosen")
    ratio_cap: float = Field(20.0, gt=0, description="dppo: largest ratio that weighs a token")
    entropy_coef: float = Field(0.0, ge=0, description="entropy bonus")
    kl_loss_coef: float = Field(
        0.0,
        ge=0,
        description="KL to the reference in the loss (besides or instead of the one in the rewards)",
    )
    kl_loss_kind: Literal["k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"] = Field(
        "k3", description="KL estimate in the loss"
    )
    aggregation: Literal[
        "auto",
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ] = Field(
        "auto",
        description="how token losses become one number; auto: token-mean, for gspo, geo_mean and sapo seq-mean-token-mean",
    )
    old_log_probs: Literal["auto", "forward"] = Field(
        "auto",
        description="forward: π_old from a forward of its own; auto: not where the update's own is the same (1 epoch, 1 minibatch)",
    )
    importance: Literal["off", "token", "sequence"] = Field(
        "off",
        description="weigh the loss by π_old/π_sampler, where the sampler's probabilities differ from the trainer's",
    )
    importance_cap: float = Field(2.0, gt=0, description="largest such weight")
    reject: Literal["off", "token", "sequence", "geometric"] = Field(
        "off",
        description="leave out what has π_old/π_sampler outside the bounds: tokens, or responses by their ratio or their mean ratio",
    )
    reject_low: float = Field(0.5, gt=0, description="smallest π_old/π_sampler that is kept")
    reject_high: float = Field(2.0, gt=0, description="largest π_old/π_sampler that is kept")
    target_kl: float | None = Field(
        None, gt=0, description="stop the step's actor updates once KL(π_old ‖ π) exceeds it"
    )


@dataclass(frozen=True)
class Bins:
    """What a critic that predicts a histogram says: the probability of each of `count` bins of equal width over [low, high]."""

    count: int
    low: float
    high: float

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.count

    def __str__(self) -> str:
        return f"{self.count} bins from {self.low:g} to {self.high:g}"


class CriticConfig(OptimizerConfig):
    lr: float = Field(1e-5, gt=0, description="learning rate after warm-up")
    loss: Literal["mse", "huber", "hl_gauss"] = Field(
        "mse",
        description="of a value prediction: half its squared error, Huber's, or hl_gauss: it is a histogram, and classified",
    )
    huber_delta: float = Field(1.0, gt=0, description="huber: errors beyond this count linearly")
    bins: int = Field(51, ge=2, le=10_000, description="hl_gauss: outputs of the value head")
    value_low: float = Field(
        -2.0, ge=-1e30, description="hl_gauss: lower end of the bins; a few bins below the returns"
    )
    value_high: float = Field(
        2.0, le=1e30, description="hl_gauss: upper end; a return outside counts as the end"
    )
    sigma: float = Field(
        0.75,
        gt=0,
        le=1000,
        description="hl_gauss: of the Gaussian around a return, in widths of a bin",
    )
    clip_value: float | None = Field(
        0.2,
        gt=0,
        description="mse, huber: value predictions are clipped to V_old ± this in the loss; none: no clipping",
    )
    head_init: Literal["zero", "normal"] = Field(
        "zero",
        description="value head: zeros, so that all states are alike; or as transformers makes new ones, N(0, initializer_range²)",
    )

    @property
    def histogram(self) -> Bins | None:
        return Bins(self.bins, self.value_low, self.value_high) if self.loss == "hl_gauss" else None


class CheckpointConfig(Section):
    every: int = Field(50, ge=0, description="steps between checkpoints; 0: only at the end")
    keep: int = Field(2, ge=1, description="newest checkpoints that stay on disk")


class LedgerConfig(Section):
    samples: Annotated[int, Field(ge=1)] | Literal["all", "off"] = Field(
        32, description="responses of each step whose every number is recorded"
    )
    every: int = Field(1, ge=1, description="steps between ledger files")


class LogConfig(Section):
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        [], description="besides metrics.jsonl"
    )
    every: int = Field(1, ge=1, description="steps between lines on a plain terminal")


class EvalConfig(Section):
    every: int = Field(
        0, ge=0, description="steps between evaluations during training; 0: only before and after"
    )
    samples: int = Field(
        512,
        ge=1,
        description="responses sampled at the rollout temperature; greedy answers each held-out prompt once",
    )
    prompts: int | None = Field(
        None,
        ge=1,
        description="held-out prompts that are used, the first ones; none: all (of a `data.task`: 500)",
    )
    correct_score: float = Field(
        1.0, description="a response counts as right when its score reaches this"
    )
    k: int = Field(
        0,
        ge=0,
        description="also eval/pass@k and eval/maj@k, from `n` samples of each held-out prompt; 0: neither",
    )
    n: int | None = Field(
        None, ge=1, description="those samples; more than k make the estimates steadier; default: k"
    )
    answer: str | None = Field(
        None,
        description="maj@k: regular expression whose last match (its group 1, if it has one) is the answer; default: the whole response",
    )


class RayConfig(Section):
    workers: int = Field(
        1,
        ge=1,
        description="processes that share every model (FSDP2), one GPU each where the cluster has GPUs",
    )
    samplers: int = Field(
        0,
        ge=0,
        description="workers that only sample, each with the whole policy; 0: those that train it do",
    )
    fsdp_size: int | None = Field(
        None,
        ge=1,
        description="workers over which a model is sliced, e.g. those of one machine; the others hold copies; default: all",
    )
    critic_workers: int = Field(
        0,
        ge=0,
        description="workers that hold the critic and nothing else; 0: it shares those of the actor",
    )
    reward_workers: int = Field(
        0,
        ge=0,
        description="workers that score with reward.model, each with all of it; 0: the controlling process does, on its CPU",
    )
    address: str | None = Field(
        None,
        description="of the cluster to join; default: RAY_ADDRESS, or else a cluster started here",
    )
    timeout: float = Field(
        600.0,
        gt=0,
        description="seconds after which a call without an answer ends the step, naming who is silent",
    )
    max_restarts: int = Field(
        3,
        ge=0,
        description="times a run goes on by itself from its last checkpoint after a worker or a node died",
    )


class Config(Section):
    name: str = Field("run", min_length=1, description="the run's folder under `dir`")
    dir: str = Field("runs", description="where run folders are")
    steps: int = Field(200, ge=0, description="rollout batches to train on")
    critic_warmup: int = Field(
        0, ge=0, description="first steps that train only the critic: value pre-training"
    )
    seed: int = Field(
        0, ge=0, description="of data order, sampling, minibatches and a random value head"
    )
    backend: Literal["local", "ray"] = Field(
        "local",
        description="local: all roles in this process; ray: in the workers of a Ray cluster",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, …; auto: a GPU if there is one")
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    credit: CreditConfig = CreditConfig()
    actor: ActorConfig = ActorConfig()
    critic: CriticConfig = CriticConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    ledger: LedgerConfig = LedgerConfig()
    ray: RayConfig = RayConfig()
    log: LogConfig = LogConfig()
    eval: EvalConfig = EvalConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.name.startswith("/") or ".." in self.name.split("/"):
            raise ValueError(
                f"name = {self.name!r} is not under `dir`: give a name, and the folder in `dir`"
            )
        rows = self.rollout.batch_size * self.rollout.n
        for role, section in (("actor", self.actor), ("critic", self.critic)):
            if section.minibatches > rows:
                raise ValueError(
                    f"{role}.minibatches = {section.minibatches}, but a step has only {rows} responses "
                    f"(rollout.batch_size × rollout.n): use at most {rows}"
                )
            row_tokens = self.data.max_prompt_tokens + self.rollout.max_response_tokens
            if (self.data.files or self.data.task) and section.micro_batch_tokens < row_tokens:
                raise ValueError(
                    f"{role}.micro_batch_tokens = {section.micro_batch_tokens} cannot hold one row of "
                    f"data.max_prompt_tokens + rollout.max_response_tokens = {row_tokens}: raise it"
                )
        for name, count in (
            ("workers", self.ray.workers),
            ("critic_workers", self.ray.critic_workers),
        ):
            if count % (self.ray.fsdp_size or count or 1):
                raise ValueError(
                    f"ray.{name} = {count} is no multiple of ray.fsdp_size = {self.ray.fsdp_size}: every model needs all its slices"
                )
        for key in ("lora_alpha", "lora_targets") if not self.model.lora_rank else ():
            if getattr(self.model, key):
                raise ValueError(
                    f"model.{key} without model.lora_rank: set the rank of the adapters, e.g. 16"
                )
        if self.data.task is not None and self.data.files:
            raise ValueError(
                "data.task makes its problems and data.files names others: leave one of them out"
            )
        for name in ("seed", "size"):
            if name in self.data.options:
                raise ValueError(
                    f"data.options.{name} is not yours to set: the run's problems are always the same ones; see data.size"
                )
        if self.data.task is not None and self.data.prompt_key != "prompt":
            raise ValueError(
                f"data.prompt_key = {self.data.prompt_key!r} names a column of data.files, and data.task has none"
            )
        if self.data.eval_files and not self.data.files:
            raise ValueError("data.eval_files without data.files: name the training files too")
        for name in (
            ("samplers", "critic_workers", "reward_workers") if self.backend == "local" else ()
        ):
            if getattr(self.ray, name):
                raise ValueError(f"ray.{name} = {getattr(self.ray, name)} needs backend = 'ray'")
        if self.ray.critic_workers and not self.credit.by_critic:
            raise ValueError(
                f"credit.estimator = '{self.credit.estimator}' asks no critic: leave out ray.critic_workers"
            )
        if self.rollout.one_step_off_policy and not (self.backend == "ray" and self.ray.samplers):
            raise ValueError(
                "rollout.one_step_off_policy needs samplers that train nothing: set backend = 'ray' and ray.samplers to 1 or more"
            )
        if self.rollout.dynamic_sampling and self.rollout.n == 1:
            raise ValueError(
                "rollout.dynamic_sampling compares the responses of one prompt, and rollout.n = 1: use at least 2"
            )
        if self.rollout.dynamic_sampling and self.rollout.one_step_off_policy:
            raise ValueError(
                "rollout.dynamic_sampling asks further prompts once a step is scored, rollout.one_step_off_policy samples before that: turn one off"
            )
        if self.ray.reward_workers and self.reward.model is None:
            raise ValueError(
                f"ray.reward_workers = {self.ray.reward_workers} would hold reward.model, and there is none: name one, or use 0"
            )
        if self.reward.overlong_tokens > self.rollout.max_response_tokens:
            limit = f"rollout.max_response_tokens = {self.rollout.max_response_tokens}"
            raise ValueError(
                f"reward.overlong_tokens = {self.reward.overlong_tokens} are more than {limit}: use fewer"
            )
        for name, pattern in (("eval", self.eval.answer), ("data", self.data.answer)):
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise ValueError(
                    f"{name}.answer = {pattern!r} is no regular expression: {error}"
                ) from None
        if self.eval.n is not None and self.eval.n < self.eval.k:
            raise ValueError(
                f"eval.n = {self.eval.n} samples cannot tell eval.k = {self.eval.k}: use at least {self.eval.k}"
            )
        _check_environment(self)
        if self.credit.kl_target is not None and self.credit.kl_coef == 0:
            raise ValueError(
                "credit.kl_target needs credit.kl_coef > 0: a coefficient of 0 cannot adapt"
            )
        _refuse_unused(self)
        estimator = self.credit.estimator
        if estimator in BY_GROUP and self.rollout.n == 1:
            raise ValueError(
                f"credit.estimator = '{estimator}' compares the responses of one prompt, and rollout.n = 1: use at least 2"
            )
        if estimator == "attention" and self.reward.attention is None:
            raise ValueError(
                "credit.estimator = 'attention' needs reward.attention, the function that gives each token its share"
            )
        if estimator == "gdpo" and self.credit.kl_coef:
            raise ValueError(
                "credit.estimator = 'gdpo' compares the parts of the score, where credit.kl_coef has no place: set it to 0, "
                "and use actor.kl_loss_coef"
            )
        if estimator == "gdpo" and (self.reward.normalise or self.reward.clip is not None):
            raise ValueError(
                "credit.estimator = 'gdpo' compares the parts of the score; reward.normalise and reward.clip change only the sum"
            )
        if self.critic.value_low >= self.critic.value_high:
            raise ValueError(
                f"critic.value_low = {self.critic.value_low:g} is not below critic.value_high = {self.critic.value_high:g}"
            )
        if self.actor.cov_low >= self.actor.cov_high:
            raise ValueError(
                f"actor.cov_low = {self.actor.cov_low:g} leaves no covariance below actor.cov_high = {self.actor.cov_high:g}"
            )
        if self.actor.reject_low >= self.actor.reject_high:
            raise ValueError(
                f"actor.reject_low = {self.actor.reject_low:g} keeps nothing below reject_high = {self.actor.reject_high:g}"
            )
        return self

    @property
    def toy(self) -> str | None:
        """The environment whose built-in task and model the run is about, if it is."""
        built_in = self.model.path == "builtin" and not self.data.files and not self.data.task
        return (
            self.rollout.environment
            if built_in and self.rollout.environment in ("calculator", "search")
            else None
        )

    @property
    def head_seed(self) -> int | None:
        """What a random value head is drawn with; none: it is zero."""
        return self.seed if self.critic.head_init == "normal" else None

    @property
    def run_dir(self) -> Path:
        return Path(self.dir) / self.name

    @classmethod
    def builtin(cls, **changes: Any) -> Config:
        """The built-in job with some settings changed: `Config.builtin(steps=20, actor={"lr": 1e-4})`."""
        data = tomllib.loads(BUILTIN_RECIPE.read_text("utf-8"))
        for key, value in changes.items():
            data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
        return _validate(data)


def smoke(config: Config) -> Config:
    """The same job, cut down to what shows in a minute that it works: 2 steps of 8 prompts, told to no tracker."""
    rollout, held_out, tokens = (
        config.rollout,
        min(config.eval.prompts or 8, 8),
        min(config.rollout.max_response_tokens, 16),
    )
    cut = {
        "name": f"{config.name}-smoke",
        "steps": min(config.steps, 2),
        "rollout": {"batch_size": min(rollout.batch_size, 8), "n": min(rollout.n, 2), "max_response_tokens": tokens},
        "data": {"size": min(config.data.size, 64)} if config.data.task else {},
        "actor": {"minibatches": min(config.actor.minibatches, 2)},
        "critic": {"minibatches": min(config.critic.minibatches, 2)},
        "critic_warmup": min(config.critic_warmup, 1),
        "reward": {"overlong_tokens": min(config.reward.overlong_tokens, 8)},
        "eval": {"samples": 8, "prompts": held_out, "k": 0, "n": None, "answer": None, "every": 0},
        "log": {"every": 1, "trackers": []},
    }  # fmt: skip
    data = config.model_dump()
    return _validate(
        {
            **data,
            **{
                key: {**data[key], **value} if isinstance(value, dict) else value
                for key, value in cut.items()
            },
        }
    )


def _check_environment(config: Config) -> None:
    chosen, kind = config.rollout, config.rollout.environment
    if kind is not None and kind not in ("calculator", "search") and ":" not in kind:
        raise ValueError(
            f"rollout.environment = {kind!r}: it is calculator, search, module:Class, file.py:Class or none"
        )
    own = (
        kind is not None and kind != "calculator"
    )  # an environment of the user's reads what it likes
    for name, read in {
        "max_turns": kind,
        "tool_seconds": kind,
        "corpus": own,
        "passages": own,
    }.items():
        if not read and getattr(chosen, name) != RolloutConfig.model_fields[name].default:
            raise ValueError(
                f"rollout.{name} = {getattr(chosen, name)} does nothing with rollout.environment = {kind or 'none'!r}"
            )
    if kind == "search" and chosen.corpus is None and not config.toy:
        raise ValueError(
            "rollout.environment = 'search' needs rollout.corpus, the passages to search"
        )


def _refuse_unused(config: Config) -> None:
    """A setting that the chosen algorithm would not read is a misunderstanding, not a wish to be ignored."""
    of_critic, of_loss, of_reject = (
        ("credit.estimator", BY_CRITIC),
        "actor.loss",
        ("actor.reject", ("token", "sequence", "geometric")),
    )
    used_by: dict[str, tuple[str, tuple[str, ...]]] = {
        "actor.dual_clip": (of_loss, ("clip",)),
        "actor.beta": (of_loss, ("kl_penalty", "kl_cov", "dro")),
        "actor.beta_target": (of_loss, ("kl_penalty",)),
        "actor.tau_positive": (of_loss, ("sapo",)),
        "actor.tau_negative": (of_loss, ("sapo",)),
        "actor.cov_share": (of_loss, ("clip_cov", "kl_cov")),
        "actor.cov_low": (of_loss, ("clip_cov",)),
        "actor.cov_high": (of_loss, ("clip_cov",)),
        "actor.ratio_cap": (of_loss, ("dppo_tv", "dppo_kl")),
        "actor.reject_low": of_reject,
        "actor.reject_high": of_reject,
        "critic.loss": of_critic,
        "critic.huber_delta": ("critic.loss", ("huber",)),
        **dict.fromkeys(
            ("critic.bins", "critic.value_low", "critic.value_high", "critic.sigma"),
            ("critic.loss", ("hl_gauss",)),
        ),
        "critic.clip_value": ("critic.loss", ("mse", "huber")),
        "critic.head_init": of_critic,
        "critic_warmup": of_critic,
        "model.critic_path": of_critic,
        "credit.bootstrap_truncated": of_critic,
        "credit.lam_critic": ("credit.estimator", ("gae",)),
        "credit.lam_alpha": ("credit.estimator", ("gae",)),
        "credit.last_k": ("credit.estimator", ("last_token",)),
        "reward.attention": ("credit.estimator", ("attention",)),
    }
    if not config.eval.k and (config.eval.n is not None or config.eval.answer is not None):
        raise ValueError("eval.n and eval.answer do nothing without eval.k, e.g. 4")
    for name in ("options", "size", "instruction", "answer") if config.data.task is None else ():
        if getattr(config.data, name) != DataConfig.model_fields[name].default:
            raise ValueError(
                f"data.{name} does nothing without data.task, the reasoning-gym task that it is of"
            )
    if not config.reward.overlong_tokens and config.reward.overlong_penalty != 1.0:
        raise ValueError(
            "reward.overlong_penalty does nothing without reward.overlong_tokens: say over how many tokens it grows"
        )
    now, default = dict(_flat(config.model_dump())), {name: value for name, _, value, _ in fields()}
    for name, (choice, values) in used_by.items():
        if now[name] != default[name] and now[choice] not in values:
            raise ValueError(
                f"{name} = {now[name]} does nothing with {choice} = {now[choice]!r}: it belongs to {', '.join(values)}"
            )


def load_config(recipe: Path | None = None, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Defaults, then the recipe, then `section.key` overrides."""
    data: dict[str, Any] = {}
    if recipe is not None:
        try:
            data = tomllib.loads(recipe.read_text("utf-8"))
        except OSError as error:
            raise TelescopeError(
                f"no recipe {recipe} ({error.strerror}): give the path of a .toml file"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TelescopeError(f"{recipe} is not valid TOML: {error}") from None
    for key, value in overrides:
        _set(data, key, value)
    return _validate(data, recipe, [key for key, _ in overrides])


def _validate(
    data: dict[str, Any], recipe: Path | None = None, given: Sequence[str] = ()
) -> Config:
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        known = {name for name, *_ in fields()}
        found: dict[tuple[str, bool], list[Any]] = {}
        for (
            e
        ) in error.errors():  # the alternatives of one setting (a number or a word) are one mistake
            loc = [str(part) for part in e["loc"]]
            key = next(
                (".".join(loc[:n]) for n in range(len(loc), 0, -1) if ".".join(loc[:n]) in known),
                ".".join(loc),
            )
            found.setdefault((key, e["type"] == "extra_forbidden"), []).append(e)
        raise TelescopeError(
            "; ".join(_explain(key, es, given, recipe) for (key, _), es in found.items())
        ) from None


def fields(
    section: type[BaseModel] = Config, prefix: str = ""
) -> Iterator[tuple[str, str, Any, str]]:
    """(dotted key, type, default, description) of every setting, for the help and the docs."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _type_name(kind), field.default, field.description or ""


def changes(old: Config, new: Config) -> list[str]:
    """What differs, as 'actor.lr: 1e-06 → 1e-05'."""
    before, after = dict(_flat(old.model_dump())), dict(_flat(new.model_dump()))
    return [
        f"{key}: {before.get(key)} → {value}"
        for key, value in after.items()
        if before.get(key) != value
    ]


def to_toml(config: Config) -> str:
    lines: list[str] = []
    nested: list[str] = []
    for key, value in config.model_dump().items():
        if isinstance(value, dict):
            nested += ["", f"[{key}]", *(f"{k} = {_toml(v)}" for k, v in value.items())]
        else:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines + nested) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )  # JSON's escapes are TOML's, but for DEL
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _set(data: dict[str, Any], key: str, text: str) -> None:
    """A command-line value is read as TOML where it is TOML (1e-6, true, [1, 2]), or else as a string."""
    value: Any = text
    with contextlib.suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"x = {text}")["x"]
    *sections, last = key.split(".")
    types_of = {name: kind for name, kind, _, _ in fields()}
    kind = types_of.get(key, "")
    if kind.startswith("list") and not isinstance(value, list):
        value = [v for v in text.split(",") if v and v != "none"]
    elif kind.startswith("str"):
        value = text
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise TelescopeError(f"--{key}: `{section}` is not a section")
    data[last] = value


def _explain(key: str, errors: Sequence[Any], given: Sequence[str], recipe: Path | None) -> str:
    typed = any(
        name == key or name.startswith(key + ".") or key.startswith(name + ".") for name in given
    )
    source = "command line" if typed else str(recipe or "config")
    if errors[0]["type"] == "extra_forbidden":
        known = [name for name, *_ in fields()]
        sections = sorted({name.split(".")[0] for name in known if "." in name})
        close = difflib.get_close_matches(key, known + sections, 1, 0.6) or [
            n for n in known if n.endswith("." + key.split(".")[-1])
        ]
        return f"{source}: no setting `{key}`" + (
            f"; did you mean `{close[0]}`?"
            if close
            else "; `telescope train --help` lists them all"
        )
    messages = [error["msg"].removeprefix("Value error, ") for error in errors]
    if not key:
        return f"{recipe or 'config'}: {messages[0]}" if not given else str(messages[0])
    return f"{source}: {key} = {errors[0]['input']!r}: " + ", or ".join(
        message[0].lower() + message[1:] for message in messages
    )


def _flat(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and key not in ("weights", "options"):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _type_name(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type_name(args[0])
    if origin is Literal:
        return "|".join(str(a) for a in args)
    if origin in (types.UnionType, typing.Union):
        return "|".join("none" if a is type(None) else _type_name(a) for a in args)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_type_name(a) for a in args)}]"
    return str(kind.__name__)
