"""The sections of a recipe. A field's description is the command line's help."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)

from telescope.algorithms.definitions import (
    DEFAULT_ESTIMATOR,
    DEFAULT_POLICY_LOSS,
    DEFAULT_VALUE_LOSS,
    ESTIMATORS,
    POLICY_LOSSES,
    VALUE_LOSSES,
)
from telescope.algorithms.definitions.base import (
    Aggregation,
    Bins,
    Definition,
    Estimator,
    PolicyLoss,
    Settings,
    ValueLoss,
)
from telescope.algorithms.definitions.registry import Registry
from telescope.algorithms.definitions.trust import absolute

Section = Settings

BUILTIN_RECIPE = Path(__file__).parent.parent / "data" / "arithmetic.toml"

KlKind = Literal["k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl"]
KlLossKind = Literal["k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"]
Reject = Literal[
    "off",
    "token",
    "sequence",
    "geometric",
    "token_k2",
    "token_k3",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
]


class ModelConfig(Section):
    path: str = Field(
        "builtin",
        min_length=1,
        description="HF causal LM: a folder, a hub name, 'builtin' (tiny, for the built-in tasks) "
        "or 'smollm2' (135M, extra `smollm`)",
    )
    critic_path: str | None = Field(
        None, description="backbone of the critic; default: the same as `path`"
    )
    reference_path: str | None = Field(
        None,
        description="model that the KL is measured against, e.g. the one before SFT; "
        "default: the policy at the start",
    )
    tokenizer_path: str | None = Field(
        None, description="folder or hub name of the tokenizer; default: the same as `path`"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="dtype of weights and computation; with bfloat16 the optimizer keeps float32 "
        "copies",
    )
    lora_rank: int = Field(
        0,
        ge=0,
        description="train LoRA adapters of this rank and freeze the weights (extra `peft`); "
        "0: train the weights",
    )
    lora_alpha: int | None = Field(
        None,
        gt=0,
        description="adapters' output is multiplied by this / lora_rank; default: 2 · lora_rank",
    )
    lora_targets: list[str] = Field(
        [], description="linear layers that get adapters; none: all but the output layer"
    )
    quantize: Literal["none", "nf4", "int8"] = Field(
        "none",
        description="keep the frozen weights of linear layers in 4 bits (nf4) or 8 (int8), with "
        "`lora_rank` (extra `bitsandbytes`); none: in `dtype`",
    )
    offload_reference: bool = Field(
        False,
        description="keep a reference with weights of its own in host memory while it is not used",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="keep only each layer's input for the backward pass: less memory, more compute",
    )
    compile: bool = Field(
        False, description="torch.compile each layer; takes tens of seconds at the start"
    )
    cuda_graphs: bool = Field(
        True, description="replay small forward and backward passes on a GPU as CUDA graphs"
    )
    trust_remote_code: bool = Field(
        False, description="run model code that comes with the checkpoint"
    )


class DataConfig(Section):
    files: list[str] = Field(
        [],
        description="training prompts: parquet, jsonl, jsonl.gz or csv files, patterns such as "
        "data/*.jsonl, or data sets of the hub, owner/name:split (extra `datasets`); "
        "none: `task` or the built-in task",
    )
    eval_files: list[str] = Field(
        [],
        description="held-out prompts for `eval`, named like `files`; none with `files`: "
        "no evaluation",
    )
    prompt_key: str = Field(
        "prompt", description="column with the prompt, as text or as chat messages"
    )
    max_prompt_tokens: int = Field(512, ge=1, description="longest prompt, in tokens")
    overlong: Literal["drop", "error"] = Field(
        "drop", description="what happens to longer prompts; dropped ones are counted"
    )
    task: str | None = Field(
        None,
        description="instead of files: a task of reasoning-gym, e.g. 'chain_sum' (extra `gym`)",
    )
    options: dict[str, Any] = Field(
        {}, description="task: reasoning-gym's own options, e.g. {max_terms = 2}"
    )
    size: int = Field(10_000, ge=1, description="task: number of different problems to train on")
    instruction: str | None = Field(
        None, description="task: system message before each problem; none: the problem alone"
    )
    answer: str | None = Field(
        None,
        description="task: regular expression whose last match in the response is scored; "
        "none: what <answer> tags hold, else the whole response",
    )
    partial_credit: bool = Field(
        True,
        description="task: pay what reasoning-gym's scorer gives, which may be a part of a point "
        "for a wrong answer; false: 1 for a right answer, else 0",
    )
    shuffle: bool = Field(True, description="new order every epoch, from the seed")


class RolloutConfig(Section):
    batch_size: int = Field(256, ge=1, description="prompts per training step")
    n: int = Field(1, ge=1, description="responses per prompt")
    max_response_tokens: int = Field(
        512,
        ge=1,
        description="most tokens of a response; one that reaches it is cut off (`truncated`)",
    )
    temperature: float = Field(
        1.0, gt=0, description="sampling temperature; every log-prob is taken at it"
    )
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
        description="replace prompts whose n responses score the same (DAPO); "
        "at most this many rounds per training step; 0: off",
    )
    engine: Literal["torch", "vllm"] = Field(
        "torch",
        description="torch samples with the actor's own weights; vllm (extra `vllm`) with a copy "
        "of them, refreshed before each rollout",
    )
    tensor_parallel_size: int = Field(
        1,
        ge=1,
        description="vllm: sampling workers that share one copy of the policy; ray.samplers is a "
        "multiple of it",
    )
    environment: str | None = Field(
        None,
        description="tools that answer while the policy writes: 'calculator', 'search', "
        "'module:Class', 'file.py:Class', or 'verifiers:ID', an environment of the verifiers "
        "library (extra `verifiers`); none: no tools",
    )
    environment_options: dict[str, Any] = Field(
        {}, description="verifiers: settings of the environment, e.g. {agent = {max_turns = 4}}"
    )
    max_turns: int = Field(
        4,
        ge=2,
        description="environment: most turns of the policy per response, its final answer included",
    )
    tool_seconds: float = Field(
        10.0,
        gt=0,
        description="environment: seconds until a tool call times out; the policy is told about it",
    )
    corpus: str | None = Field(
        None,
        description="search: jsonl or parquet file with a `text` column, or a bm25s folder",
    )
    passages: int = Field(3, ge=1, description="search: passages in the answer to a query")
    one_step_off_policy: bool = Field(
        False,
        description="sample step k+1 while step k trains, with weights one training step older; "
        "needs ray.samplers",
    )
    cuda_graphs: bool = Field(
        True, description="on a GPU, sample with CUDA graphs; false: step by step, slower"
    )
    gpu_memory_utilization: float = Field(
        0.8,
        gt=0,
        lt=1,
        description="share (0 to 1) of the free GPU memory for the sampler's cache; prompts that "
        "do not fit wait",
    )


class RewardConfig(Section):
    functions: list[str] = Field(
        [],
        description="reward functions: 'module:function', 'file.py:function', a built-in one "
        "(exact, regex, json_schema, format, length, repetition, math_verify, python, judge; "
        "'name=regex' to call it otherwise), or a server, 'https://host/path' or 'name=https://…', "
        "${KEY} is that variable of the environment; none: the built-in task's verdict and sum",
    )
    options: dict[str, dict[str, Any]] = Field(
        {},
        description="options of built-in reward functions by name, e.g. {regex = {pattern = 'x'}}",
    )
    timeout: float = Field(60.0, gt=0, description="seconds to wait for a reward server")
    retries: int = Field(
        3, ge=0, description="further tries when a reward server fails, after 1, 2, 4, … seconds"
    )
    headers: dict[str, dict[str, str]] = Field(
        {},
        description="HTTP headers of a reward server by its name, e.g. "
        "{score = {Authorization = 'Bearer ${KEY}'}}, ${KEY} is that variable of the environment",
    )
    function_timeout: float | None = Field(
        None,
        gt=0,
        description="seconds until a reward function that has not returned ends the run; the "
        "functions then run in threads; none: no limit",
    )
    parallel: bool = Field(
        False,
        description="call the reward functions at the same time, in threads; async ones always are",
    )
    model: str | None = Field(
        None, description="HF sequence-classification reward model, added to the functions"
    )
    micro_batch_tokens: int = Field(
        16_384, ge=1, description="most tokens in one forward of the reward model"
    )
    weights: dict[str, float] = Field(
        {},
        description="weight of each part by name (function name, or 'model'); "
        "default 1 each, built-in 0.5",
    )
    scale: float = Field(1.0, gt=0, description="multiply the score of a response by this, …")
    shift: float = Field(0.0, description="… then add this")
    normalise: bool | Literal["batch"] = Field(
        False,
        description="then (score − μ)/σ over all responses trained on so far; batch: over those "
        "of this training step",
    )
    clip: float | None = Field(
        None, gt=0, description="then clip the score of a response to ± this; none: no clipping"
    )
    overlong_tokens: int = Field(
        0,
        ge=0,
        description="then subtract a penalty that grows over this many tokens before the limit; "
        "0: none",
    )
    overlong_penalty: float = Field(
        1.0, gt=0, description="that penalty for a response of rollout.max_response_tokens tokens"
    )
    attention: str | None = Field(
        None,
        description="a function like a reward's that gives each response token its weight, for "
        "an estimator that needs it",
    )


class OptimizerConfig(Section):
    lr: float = Field(1e-6, gt=0, description="learning rate after warm-up")
    warmup_steps: int = Field(
        0,
        ge=0,
        description="training steps of linear learning-rate warm-up (not optimizer steps)",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="learning rate after warm-up: constant, or falling to `lr_min`"
    )
    lr_min: float = Field(
        0.0, ge=0, description="learning rate at the end of a linear or cosine schedule"
    )
    optimizer: Literal["adamw", "adamw8bit", "paged_adamw8bit"] = Field(
        "adamw",
        description="AdamW with float32 moments; with moments of 8 bits (extra `bitsandbytes`); "
        "paged: which move to host memory when the GPU's is full",
    )
    offload_optimizer: bool = Field(
        False,
        description="keep the optimizer's float32 copies and moments in host memory between "
        "optimizer steps: less memory, the same results, slower",
    )
    weight_decay: float = Field(0.0, ge=0, description="weight decay of AdamW")
    max_grad_norm: float = Field(
        1.0, gt=0, description="a gradient with a larger L2 norm is scaled down to this norm"
    )
    epochs: int = Field(1, ge=1, description="passes over each rollout batch")
    minibatches: int = Field(1, ge=1, description="optimizer steps per pass")
    micro_batch_tokens: int = Field(
        16_384,
        ge=1,
        description="most tokens in one forward and backward; changes memory, not results",
    )


# ---- sections whose settings depend on the chosen algorithm ----

KL_COEF = 0.02
"""Default weight of the KL to the reference, in the rewards or in the loss."""


def kl_place(estimator: Any) -> str:
    """Where the estimator's paper has the KL: reward or loss."""
    try:
        return ESTIMATORS[absolute(estimator)].kl_in
    except (LookupError, TypeError, AttributeError):
        return "reward"  # not an estimator: validation says so


class ChosenSection(Section):
    """A section that names an algorithm. `variant` adds the settings of that algorithm."""

    chosen_by: ClassVar[str]
    """The setting that names it."""
    registry: ClassVar[Registry[Any]]

    @classmethod
    def of(cls, name: str | None = None, /, **settings: Any) -> Self:
        """The section of one algorithm: `CreditConfig.of("gae", lam=1.0)`."""
        chosen = settings.setdefault(cls.chosen_by, name or cls.model_fields[cls.chosen_by].default)
        made: Any = variant(cls, chosen).model_validate(settings)
        return cast(Self, made)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the values: the class of a variant is made anew where they are read."""
        base = next(kind for kind in type(self).__mro__ if ChosenSection in kind.__bases__)
        return _rebuild, (base, self.model_dump())


@functools.cache
def variant(base: type[ChosenSection], name: str) -> type[ChosenSection]:
    """The section with the settings of one definition added."""
    definition: Definition = base.registry[name]
    taken = set(base.model_fields) & set(definition.settings.model_fields)
    if taken:
        raise LookupError(
            f"{name} has a setting `{min(taken)}`, which every {base.registry.what} has: rename it"
        )
    other: dict[str, Any] = {}
    if kl_place(name) != "reward" and "kl_coef" in base.model_fields:
        description = base.model_fields["kl_coef"].description
        other["kl_coef"] = (float, Field(0.0, ge=0, description=description))
    bases: Any = (base, definition.settings)
    made: Any = create_model(f"{base.__name__}[{definition.name}]", __base__=bases, **other)
    return cast(type[ChosenSection], made)


def _known_in(registry: Registry[Any]) -> AfterValidator:
    """Refuses a name that no definition has."""

    def check(name: str) -> str:
        try:
            registry[name]
        except LookupError as error:
            raise ValueError(str(error)) from None
        return name

    return AfterValidator(check)


def _by_choice(base: type[ChosenSection]) -> WrapValidator:
    """Validates a section with the settings of the algorithm that it names."""
    choice = base.chosen_by

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, dict):
            return handler(value)
        name = value.get(choice, base.model_fields[choice].default)
        if not isinstance(name, str):
            return handler({choice: name})  # raises: it is not a name
        name = absolute(name)
        try:
            model = variant(base, name)
        except LookupError:
            handler({choice: name})  # raises, and says which names there are
            raise
        return model.model_validate({**value, choice: name})

    return WrapValidator(validate)


def _rebuild(section: Any, values: dict[str, Any]) -> Any:
    return section.of(**values)


class CreditConfig(ChosenSection):
    """Settings that every estimator has; `variant` adds those of the chosen one."""

    chosen_by: ClassVar[str] = "estimator"
    registry: ClassVar[Registry[Any]] = ESTIMATORS

    estimator: Annotated[str, _known_in(ESTIMATORS)] = Field(
        DEFAULT_ESTIMATOR,
        description="how rewards (and values, if there is a critic) become advantages",
    )
    gamma: float = Field(
        1.0,
        ge=0,
        le=1,
        description="discount per valid token; ignored by estimators that use only the total "
        "reward of a response",
    )
    whiten: bool | Literal["auto"] = Field(
        "auto",
        description="the actor uses (A − μ)/σ over the whole batch; false: raw A; "
        "auto: as the estimator's paper does",
    )
    whiten_rewards: bool = Field(
        False,
        description="divide the token rewards, KL included, by their standard deviation over the "
        "whole batch; their mean stays",
    )
    bootstrap_truncated: bool = Field(
        False, description="a cut-off response ends with V of its last state instead of 0"
    )
    kl_coef: float = Field(
        KL_COEF,
        ge=0,
        description="β: weight of the KL penalty in the token rewards; 0: none. Default 0 with "
        "estimators whose papers have the KL in the loss (grpo and its kin): there "
        "actor.kl_loss_coef is 0.02",
    )
    kl_kind: KlKind = Field(
        "k1",
        description="KL estimate in the rewards; verl's names kl, mse, low_var_kl mean k1, k2, k3",
    )
    kl_target: float | None = Field(
        None, gt=0, description="adapt β towards this KL, in nats per token; default: β is fixed"
    )
    kl_horizon: int = Field(10_000, ge=1, description="responses over which β adapts")
    kl_steps: Literal["all", "recorded"] = Field(
        "all",
        description="training steps that measure the KL to the reference; recorded: only those "
        "that the ledger records, for runs whose rewards and loss do not use it",
    )

    @property
    def definition(self) -> Estimator:
        return ESTIMATORS[self.estimator]

    @property
    def by_critic(self) -> bool:
        return self.definition.needs.critic

    @property
    def whitens(self) -> bool:
        return self.definition.whiten if self.whiten == "auto" else self.whiten


class ActorConfig(OptimizerConfig, ChosenSection):
    """Settings that every policy loss has; `variant` adds those of the chosen one."""

    chosen_by: ClassVar[str] = "loss"
    registry: ClassVar[Registry[Any]] = POLICY_LOSSES

    loss: Annotated[str, _known_in(POLICY_LOSSES)] = Field(
        DEFAULT_POLICY_LOSS, description="what the actor minimises; the default is PPO's clip"
    )
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus; 0: none")
    entropy_target: float | None = Field(
        None,
        gt=0,
        description="nats per token: entropy_coef is multiplied by 1 − entropy/target, and the "
        "bonus is off above the target; default: the weight is fixed",
    )
    kl_loss_coef: float = Field(
        0.0,
        ge=0,
        description="weight of the KL to the reference in the loss, besides credit.kl_coef in the "
        "rewards; 0: none. Default 0.02 with estimators whose papers have it there, unless "
        "credit.kl_coef is set",
    )
    kl_loss_kind: KlLossKind = Field(
        "k3",
        description="KL estimate in the loss; with +: the value of this estimate, and the "
        "(unbiased) gradient of k2",
    )
    aggregation: Literal["auto", Aggregation] = Field(
        "auto", description="how token losses become one number; auto: as the loss's paper does"
    )
    old_log_probs: Literal["auto", "forward", "sampler"] = Field(
        "auto",
        description="forward: π_old from a forward of its own; auto: skip it where the update's "
        "own forward is the same (1 epoch, 1 minibatch); sampler: always skip it and take the "
        "sampler's log-probs, whose rounding then is in the ratio",
    )
    importance: Literal["off", "token", "sequence"] = Field(
        "off",
        description="weigh the loss by π_old/π_sampler, where sampler and trainer disagree",
    )
    importance_cap: float = Field(2.0, gt=0, description="largest importance weight")
    importance_low: float = Field(0.0, ge=0, description="smallest importance weight")
    importance_mode: Literal["truncate", "mask"] = Field(
        "truncate",
        description="a ratio outside importance_low to importance_cap is set to the nearer bound, "
        "or to 0 (mask by token: IcePop)",
    )
    reject: Reject = Field(
        "off",
        description="leave out tokens, or responses, whose π_old/π_sampler is out of bounds; k2 "
        "and k3: whose divergence (½g², e^g − 1 − g; g = log π_old − log π_sampler) is",
    )
    reject_low: float = Field(
        0.5, gt=0, description="smallest π_old/π_sampler that is kept; not for k2 and k3"
    )
    reject_high: float = Field(
        2.0, gt=0, description="largest π_old/π_sampler, or k2 or k3, that is kept"
    )
    reject_outlier: float | None = Field(
        None,
        gt=1,
        description="leave out a response if one token's π_old/π_sampler is above this or below "
        "1/this, e.g. 1e4; none: keep it",
    )
    off_policy_mask: float | None = Field(
        None,
        gt=0,
        description="no loss for tokens with A < 0 in responses whose mean log π_sampler − log π "
        "is above this; none: no mask",
    )
    top_entropy: float = Field(
        1.0,
        gt=0,
        le=1,
        description="only this share of a minibatch's tokens, those with the largest entropy, has "
        "a loss; 1: all of them",
    )
    target_kl: float | None = Field(
        None,
        gt=0,
        description="end a training step's actor update once KL(π_old ‖ π) of a minibatch exceeds "
        "this, in nats per token",
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> ActorConfig:
        if self.reject_low >= self.reject_high and not self.rejects_by_divergence:
            raise ValueError(
                f"actor.reject_low = {self.reject_low:g} keeps nothing below "
                f"reject_high = {self.reject_high:g}"
            )
        if self.importance_low > self.importance_cap:
            raise ValueError(
                f"actor.importance_low = {self.importance_low:g} is above "
                f"importance_cap = {self.importance_cap:g}"
            )
        return self

    @property
    def definition(self) -> PolicyLoss:
        return POLICY_LOSSES[self.loss]

    @property
    def rejects(self) -> bool:
        """Whether tokens may be left out because sampler and trainer disagree."""
        return self.reject != "off" or self.reject_outlier is not None

    @property
    def rejects_by_divergence(self) -> bool:
        return self.reject.endswith(("k2", "k3"))

    @property
    def weighs(self) -> bool:
        """Whether a token's loss may have another weight than 1."""
        masks = self.off_policy_mask is not None or self.top_entropy < 1
        return self.importance != "off" or self.rejects or masks

    @property
    def aggregates(self) -> Aggregation:
        """`aggregation`, resolved."""
        if self.aggregation == "auto":
            return self.definition.aggregation
        return self.aggregation


class CriticConfig(OptimizerConfig, ChosenSection):
    """Settings that every value loss has; `variant` adds those of the chosen one."""

    lr: float = Field(1e-5, gt=0, description="learning rate after warm-up")
    chosen_by: ClassVar[str] = "loss"
    registry: ClassVar[Registry[Any]] = VALUE_LOSSES

    loss: Annotated[str, _known_in(VALUE_LOSSES)] = Field(
        DEFAULT_VALUE_LOSS,
        description="what the critic minimises; the default is half the squared error",
    )
    head_init: Literal["zero", "normal"] = Field(
        "zero", description="value head: zeros, or N(0, initializer_range²) as in transformers"
    )
    reads: str | None = Field(
        None,
        min_length=1,
        description="column of the data that the critic reads before the prompt, e.g. a worked "
        "solution; `a.b` is b inside of a. The policy never sees it; none: the prompt alone",
    )

    @property
    def definition(self) -> ValueLoss:
        return VALUE_LOSSES[self.loss]

    @property
    def histogram(self) -> Bins | None:
        """The bins of a critic that predicts a histogram."""
        if self.definition.histogram is None:
            return None
        return self.definition.histogram(self)


class WarmStartConfig(Section):
    """Supervised training before PPO, `[warm_start]`."""

    files: list[str] = Field(
        [],
        description="rows with `prompt` and `completion`, as text or chat messages (TRL's layout), "
        "on which the policy is trained before PPO; none: no warm start",
    )
    epochs: int = Field(1, ge=1, description="passes over the rows")
    steps: int | None = Field(
        None, ge=1, description="most optimizer steps; default: as many as the epochs take"
    )
    batch_size: int = Field(32, ge=1, description="rows per optimizer step")
    lr: float = Field(1e-5, gt=0, description="learning rate after warm-up")
    warmup_steps: int = Field(
        0, ge=0, description="optimizer steps of linear learning-rate warm-up"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "linear", description="learning rate after warm-up: constant, or falling to 0"
    )


class CheckpointConfig(Section):
    every: int = Field(
        50, ge=0, description="training steps between checkpoints; 0: only at the end"
    )
    keep: int = Field(2, ge=1, description="number of newest checkpoints that stay on disk")


class LedgerConfig(Section):
    samples: Annotated[int, Field(ge=1)] | Literal["all", "off"] = Field(
        32,
        description="responses recorded per training step: the first so many, in batch order; "
        "all; or off",
    )
    every: int = Field(1, ge=1, description="training steps between ledger files")
    prompts: int = Field(
        0,
        ge=0,
        description="held-out prompts whose greedy answers every evaluation records, so that one "
        "prompt can be followed through training; 0: none",
    )


class LogConfig(Section):
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        [], description="where metrics go besides metrics.jsonl"
    )
    project: str = Field("telescope", min_length=1, description="project in W&B and trackio")
    group: str | None = Field(
        None, description="group in W&B and trackio, e.g. for the seeds of one setting"
    )
    tags: list[str] = Field([], description="tags in W&B")
    samples: int = Field(
        8,
        ge=0,
        description="responses in the sample table of a tracker: prompt, response, score; 0: none",
    )
    samples_every: int = Field(
        10, ge=1, description="training steps between sample tables of a tracker"
    )
    every: int = Field(1, ge=1, description="training steps between lines on a plain terminal")


class DoctorConfig(Section):
    watch: bool = Field(
        True, description="look for problems after each training step, and print those that start"
    )
    stop_on: list[str] = Field(
        [],
        description="findings that end the run after a checkpoint, e.g. collapse; "
        "`docs/doctor.md` lists them",
    )


class EvalSetConfig(Section):
    """A named evaluation set, `[eval.sets.NAME]`."""

    files: list[str] = Field(min_length=1, description="prompts, as in `data.eval_files`")
    functions: list[str] = Field(
        [], description="reward functions of this set; none: the run's own reward"
    )
    weights: dict[str, float] = Field({}, description="weights of these functions, default 1 each")
    correct_score: float | None = Field(None, description="default: eval.correct_score")
    prompts: int | None = Field(None, ge=1, description="first prompts used; default: eval.prompts")


class EvalConfig(Section):
    every: int = Field(
        0, ge=0, description="training steps between evaluations; 0: only before and after training"
    )
    samples: int = Field(
        512,
        ge=1,
        description="responses sampled at the rollout temperature; greedy answers each held-out "
        "prompt once",
    )
    prompts: int | None = Field(
        None, ge=1, description="use only the first held-out prompts; none: all (`data.task`: 500)"
    )
    correct_score: float = Field(1.0, description="a response with at least this score is correct")
    k: int = Field(
        0,
        ge=0,
        description="also eval/pass@k and eval/maj@k, from `n` responses per prompt; 0: neither",
    )
    n: int | None = Field(
        None,
        ge=1,
        description="responses per prompt for pass@k and maj@k; more than k: steadier; default: k",
    )
    answer: str | None = Field(
        None,
        description="maj@k: regular expression whose last match (its group 1, if it has one) is "
        "the answer; default: the whole response",
    )
    by: str | None = Field(
        None,
        description="column of the data, e.g. 'level': also the greedy accuracy of each of its "
        "values",
    )
    sets: dict[str, EvalSetConfig] = Field(
        {},
        description="further evaluation sets by name, each with `files` and, if it is scored "
        "otherwise, `functions`",
    )
    best: str | None = Field(
        None,
        description="metric of the evaluation, e.g. eval/greedy_accuracy, whose best checkpoint "
        "is kept besides the newest; none: only the newest are kept",
    )
    best_mode: Literal["max", "min"] = Field(
        "max", description="whether the best is the highest or the lowest value"
    )
    patience: int = Field(
        0,
        ge=0,
        description="early stopping: end the run after this many evaluations without a better "
        "`best`; 0: never",
    )
    completions: bool = Field(
        True, description="write every response of an evaluation to ledger/completions_….parquet"
    )


class RayConfig(Section):
    workers: int = Field(
        1,
        ge=1,
        description="worker processes over which every model is sharded (FSDP2); one GPU each, or "
        "CPUs if there is no GPU",
    )
    samplers: int = Field(
        0,
        ge=0,
        description="sampling workers: they only sample, each with the whole policy, or its part "
        "(rollout.tensor_parallel_size); 0: none",
    )
    fsdp_size: int | None = Field(
        None,
        ge=1,
        description="workers that shard one copy of a model, e.g. those of one machine; "
        "default: all workers",
    )
    sequence_parallel_size: int = Field(
        1,
        ge=1,
        description="workers that share the tokens of the same rows, for long responses: each "
        "holds 1/N of a micro-batch's tokens (sequence parallelism); 1: none",
    )
    critic_workers: int = Field(
        0, ge=0, description="workers with only the critic; 0: it shares the actor's workers"
    )
    reward_workers: int = Field(
        0, ge=0, description="workers with reward.model; 0: the controller scores, on its CPU"
    )
    workers_per_gpu: int = Field(
        1,
        ge=1,
        description="workers of any kind that share a GPU, to try several ranks on one; they talk "
        "over gloo instead of NCCL, so this is no way to train faster",
    )
    address: str | None = Field(
        None, description="cluster to join; default: RAY_ADDRESS, else a cluster started here"
    )
    timeout: float = Field(
        600.0, gt=0, description="seconds to wait for a worker before the step fails"
    )
    max_restarts: int = Field(
        3, ge=0, description="restarts from the last checkpoint after a worker or a node died"
    )


class Config(Section):
    """Every setting of a run."""

    name: str = Field("run", min_length=1, description="the run's folder under `dir`")
    dir: str = Field("runs", description="folder of the run folders")
    steps: int = Field(200, ge=0, description="training steps, one rollout batch each")
    critic_warmup: int = Field(
        0, ge=0, description="first training steps that train only the critic: value pre-training"
    )
    seed: int = Field(
        0,
        ge=0,
        description="random seed of data order, sampling, minibatches and a random value head",
    )
    backend: Literal["local", "ray"] = Field(
        "local",
        description="local: all roles in this process; ray: in the workers of a Ray cluster",
    )
    callbacks: list[str] = Field(
        [],
        description="functions that the run calls at start, step, evaluate, save and end: "
        "'module:function' or 'file.py:function'",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, …; auto: a GPU if there is one")
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    credit: Annotated[SerializeAsAny[CreditConfig], _by_choice(CreditConfig)] = CreditConfig.of()
    actor: Annotated[SerializeAsAny[ActorConfig], _by_choice(ActorConfig)] = ActorConfig.of()
    critic: Annotated[SerializeAsAny[CriticConfig], _by_choice(CriticConfig)] = CriticConfig.of()
    checkpoint: CheckpointConfig = CheckpointConfig()
    ledger: LedgerConfig = LedgerConfig()
    ray: RayConfig = RayConfig()
    log: LogConfig = LogConfig()
    doctor: DoctorConfig = DoctorConfig()
    eval: EvalConfig = EvalConfig()

    if not TYPE_CHECKING:  # a type checker knows the settings from the fields

        def __init__(self, /, **settings: Any) -> None:
            """Refuses mistakes in one line, as a recipe's."""
            try:
                super().__init__(**settings)
            except ValidationError as error:
                from telescope.config.load import refusal

                raise refusal(error, settings) from None

        __init__.__pydantic_base_init__ = True  # so that model_validate does not call it

    @model_validator(mode="wrap")
    @classmethod
    def _with_suggestions(cls, data: Any, handler: ModelWrapValidatorHandler[Config]) -> Config:
        """Says in Python too what an unknown setting was probably meant to be."""
        try:
            return handler(data)
        except ValidationError as error:
            from telescope.config.load import with_suggestions

            raise with_suggestions(error) from None

    @model_validator(mode="before")
    @classmethod
    def _place_kl(cls, data: Any) -> Any:
        """Puts the default weight of the KL into the loss where the estimator's paper has it."""
        if not isinstance(data, dict):
            return data
        credit = data.get("credit", {})
        actor = data.get("actor", {})
        if not isinstance(credit, dict) or not isinstance(actor, dict):
            return data
        if "kl_coef" in credit or "kl_loss_coef" in actor:
            return data
        if kl_place(credit.get("estimator", DEFAULT_ESTIMATOR)) == "reward":
            return data
        return {**data, "actor": {**actor, "kl_loss_coef": KL_COEF}}

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        from telescope.config.checks import check

        check(self)
        return self

    @property
    def toy(self) -> str | None:
        """The built-in environment, where the run uses its built-in task and model."""
        environment = self.rollout.environment
        built_in = self.model.path == "builtin" and not self.data.files and not self.data.task
        return environment if built_in and environment in ("calculator", "search") else None

    @property
    def lacks_data(self) -> bool:
        """Whether a model of the user's own gets the built-in prompts, as no data is named."""
        data = self.data
        named = data.files or data.task or self.verifiers_id
        return self.model.path != "builtin" and not named

    @property
    def verifiers_id(self) -> str | None:
        """The environment of the verifiers library that the run uses."""
        kind, _, name = (self.rollout.environment or "").partition(":")
        return name if kind == "verifiers" else None

    @property
    def reward_functions(self) -> list[str]:
        """Every reward function that is named, also by an evaluation set."""
        sets = self.eval.sets.values()
        return [*self.reward.functions, *(name for own in sets for name in own.functions)]

    @property
    def head_seed(self) -> int | None:
        """The seed of a random value head; None: the head starts at zero."""
        return self.seed if self.critic.head_init == "normal" else None

    @property
    def run_dir(self) -> Path:
        return Path(self.dir) / self.name

    @classmethod
    def builtin(cls, **changes: Any) -> Config:
        """The built-in recipe with changes: `Config.builtin(steps=20, actor={"lr": 1e-4})`."""
        from telescope.config.load import merge, validate

        recipe = tomllib.loads(BUILTIN_RECIPE.read_text("utf-8"))
        return validate(merge(recipe, changes))
