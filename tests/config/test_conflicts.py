"""Settings that the chosen algorithm or tool would not read, or lacks, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.configs import given, refusal, round_trip, typed


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            "credit.estimator=grpo",
            "compares the responses of one prompt, and rollout.n = 1: use at least 2",
        ),
        (
            "credit.kl_steps=recorded",
            "but credit.kl_coef = 0.02 uses the KL in every step: "
            "set credit.kl_coef = 0, or credit.kl_steps = 'all'",
        ),
        (
            "credit.kl_steps=recorded credit.kl_coef=0 actor.kl_loss_coef=0.1",
            "but actor.kl_loss_coef = 0.1 uses the KL in every step",
        ),
        (
            "actor.old_log_probs=sampler actor.reject=token",
            "actor.reject = token needs the trainer's own π_old: set actor.old_log_probs = 'auto'",
        ),
        ("credit.estimator=attention", "needs reward.attention"),
        (
            "reward.attention=a:b",
            "reward.attention = a:b does nothing with credit.estimator = 'gae': it belongs to attention",
        ),
        (
            "credit.estimator=gdpo rollout.n=2 credit.kl_coef=0.1",
            "set it to 0, and use actor.kl_loss_coef",
        ),
        (
            "credit.estimator=remax credit.bootstrap_truncated=true",
            "does nothing with credit.estimator = 'remax'",
        ),
        ("credit.estimator=uniform critic_warmup=3", "critic_warmup = 3 does nothing"),
        (
            "credit.estimator=rloo rollout.n=2 critic.head_init=normal",
            "critic.head_init = normal does nothing",
        ),
        ("critic.head_init=ones", "critic.head_init = 'ones': input should be 'zero' or 'normal'"),
        ("credit.estimator=uniform model.critic_path=x", "model.critic_path = x does nothing"),
        ("credit.estimator=td0 credit.lam_critic=1", "it belongs to gae"),
        (
            "credit.last_k=4",
            "credit.last_k = 4 does nothing with credit.estimator = 'gae': it belongs to last_token",
        ),
        (
            "credit.estimator=last_token credit.last_k=0",
            "credit.last_k = 0: input should be greater than or equal to 1",
        ),
        (
            "actor.loss=cispo actor.dual_clip=3",
            "actor.dual_clip = 3 does nothing with actor.loss = 'cispo': it belongs to clip, gspo",
        ),
        (
            "critic.lr_min=1e-7",
            "critic.lr_min = 1e-07 does nothing with critic.schedule = 'constant'",
        ),
        (
            "actor.schedule=cosine actor.lr_min=1 actor.lr=0.5",
            "actor.lr_min = 1 is more than actor.lr = 0.5",
        ),
        ("eval.patience=3", "eval.patience does nothing without eval.best"),
        ("eval.best=eval/greedy_accuracy", "eval.best compares evaluations: set eval.every"),
        ("actor.beta=0.3", "it belongs to kl_penalty, kl_cov, dro"),
        ("actor.reject_low=0.9", "it belongs to token, sequence, geometric"),
        ("actor.reject=token actor.reject_low=3", "actor.reject_low = 3 keeps nothing"),
        ("critic.huber_delta=2", "it belongs to huber"),
        ("critic.loss=huber credit.estimator=reinforce++", "critic.loss = huber does nothing"),
        (
            "critic.bins=21",
            "critic.bins = 21 does nothing with critic.loss = 'mse': it belongs to hl_gauss",
        ),
        ("critic.value_low=-1", "it belongs to hl_gauss"),
        ("critic.value_high=1", "it belongs to hl_gauss"),
        (
            "critic.loss=huber critic.sigma=1",
            "critic.sigma = 1 does nothing with critic.loss = 'huber'",
        ),
        (
            "critic.loss=hl_gauss critic.clip_value=0.5",
            "critic.clip_value = 0.5 does nothing with critic.loss = 'hl_gauss'",
        ),
        (
            "critic.loss=hl_gauss critic.value_low=2",
            "critic.value_low = 2 is not below critic.value_high = 2",
        ),
        (
            "critic.loss=hl_gauss critic.bins=1",
            "critic.bins = 1: input should be greater than or equal to 2",
        ),
        (
            "critic.loss=hl_gauss critic.value_high=inf",
            "critic.value_high = inf: input should be a finite number",
        ),
        (
            "critic.loss=hl_gauss critic.bins=1_000_000",
            "critic.bins = 1000000: input should be less than or equal to 10000",
        ),
        ("actor.clip_high=inf", "actor.clip_high = inf: input should be a finite number"),
        ("critic.clip_value=inf", "critic.clip_value = inf: input should be a finite number"),
        ("eval.correct_score=nan", "eval.correct_score = nan: input should be a finite number"),
        ("reward.weights={a=inf}", "input should be a finite number"),
        (
            "actor.loss=clip_cov actor.cov_low=5",
            "actor.cov_low = 5 leaves no covariance below actor.cov_high = 5",
        ),
        ("actor.lr=true", "actor.lr = 'true': input should be a valid number"),
        ("rollout.batch_size=true", "rollout.batch_size = 'true': input should be a valid integer"),
        ("model.path=", "model.path = '': string should have at least 1 character"),
        (
            "rollout.dynamic_sampling=2",
            "rollout.dynamic_sampling compares the responses of one prompt, and rollout.n = 1: use at least 2",
        ),
        (
            "rollout.dynamic_sampling=2 rollout.n=2 rollout.one_step_off_policy=true "
            "backend=ray ray.samplers=1",
            "rollout.one_step_off_policy samples before that: turn one off",
        ),
        (
            "reward.overlong_tokens=9 rollout.max_response_tokens=8",
            "reward.overlong_tokens = 9 is more than",
        ),
        ("reward.overlong_penalty=2", "does nothing without reward.overlong_tokens"),
        ("credit.estimator=gdpo rollout.n=2 credit.kl_coef=0 reward.clip=1", "change only the sum"),
        ("backend=ray ray.reward_workers=1", "would hold reward.model, and there is none"),
        ("eval.n=4", "do nothing without eval.k"),
        (
            "actor.importance_mode=mask",
            "actor.importance_mode = mask does nothing with actor.importance = 'off'",
        ),
        (
            "actor.importance=token actor.importance_low=3",
            "actor.importance_low = 3 is above importance_cap = 2",
        ),
        (
            "actor.reject=seq_max_k3 actor.reject_low=0.1",
            "actor.reject_low = 0.1 does nothing with actor.reject = 'seq_max_k3'",
        ),
        (
            "actor.loss=cispo actor.anchor=sampler actor.importance=token",
            "would do so again: leave one out",
        ),
        (
            "actor.old_log_probs=sampler actor.reject_outlier=100",
            "actor.reject_outlier = 100.0 needs the trainer's own π_old",
        ),
        ("eval.k=4 eval.n=3", "eval.n = 3 samples are too few for eval.k = 4: use at least 4"),
        ("eval.k=4 eval.answer=(", "eval.answer = '(' is not a regular expression"),
    ],
)
def test_what_an_algorithm_would_ignore_or_lacks_is_refused_in_one_line(settings: str, why: str):
    assert why in refusal(*typed(settings))


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            {"environment": "abacus"},
            "use calculator, search, module:Class, file.py:Class or none",
        ),
        (
            {"max_turns": "3"},
            "rollout.max_turns = 3 does nothing with rollout.environment = 'none'",
        ),
        ({"tool_seconds": "3"}, "rollout.tool_seconds = 3.0 does nothing"),
        (
            {"environment": "calculator", "corpus": "x"},
            "rollout.corpus = x does nothing with rollout.environment = 'calculator'",
        ),
        ({"environment": "calculator", "max_turns": "1"}, "greater than or equal to 2"),
    ],
)
def test_settings_of_tools_that_nobody_would_read_are_refused(overrides: dict[str, str], why: str):
    assert why in refusal(*((f"rollout.{key}", value) for key, value in overrides.items()))


def test_search_needs_a_corpus_but_for_the_builtin_task(tmp_path: Path):
    search = ("rollout.environment", "search")
    assert given(search).toy == "search"
    assert "needs rollout.corpus" in refusal(search, ("model.path", "some/model"))
    more = typed("model.path=some/model rollout.corpus=x.jsonl rollout.passages=5")
    config = given(search, *more)
    assert config.toy is None
    assert round_trip(config, tmp_path) == config
    assert given(("rollout.environment", "none")).rollout.environment is None


def test_a_resolved_config_of_a_critic_free_run_loads_again(tmp_path: Path):
    config = given(*typed("credit.estimator=grpo rollout.n=4 actor.loss=gspo"))
    assert round_trip(config, tmp_path) == config
