from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from telescope import Config, Trainer, ledger
from telescope.batch import COLUMNS
from telescope.credit import compute_advantages
from telescope.data import arithmetic
from telescope.errors import TelescopeError
from telescope.run.evaluate import evaluate, evaluate_run
from telescope.run.live import explain_pair
from tests import ROOT
from tests.refusals import write_jsonl

DOCS = ROOT / "docs"


def test_the_loop_fits_on_a_page() -> None:
    assert len(inspect.getsource(Trainer.loop).splitlines()) <= 80


def test_a_script_can_train_with_its_own_reward_function(make_config) -> None:
    calls = []

    def longest(prompts, completions, **columns):
        calls.append(len(prompts))
        return [float(len(ids)) for ids in columns["response_ids"]]

    metrics = Trainer(make_config(), reward=longest).fit()
    assert metrics["reward/longest"] == metrics["reward/score_mean"] > 0
    assert calls.count(8) >= 2


def test_the_stages_run_in_the_documented_order(
    make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(make_config(("steps", "1")))
    trace = []
    for role, verbs in {
        "actor": ["generate_sequences", "update_actor"],
        "critic": ["compute_values", "update_critic"],
        "reference": ["compute_log_prob"],
        "reward": ["compute_reward"],
    }.items():
        target = getattr(trainer.roles, role)
        for verb in verbs:
            original = getattr(target, verb)
            monkeypatch.setattr(
                target, verb, lambda *a, _o=original, _v=verb, **k: trace.append(_v) or _o(*a, **k)
            )
    monkeypatch.setattr(
        "telescope.trainer.compute_advantages",
        lambda *a, **k: trace.append("compute_advantages") or compute_advantages(*a, **k),
    )
    trainer.held_out = None  # evaluation calls verbs too
    trainer.fit()
    assert trace == [
        "generate_sequences", "compute_values", "compute_log_prob", "compute_reward",
        "compute_advantages", "update_critic", "update_actor",
    ]  # fmt: skip


def test_the_passes_of_stage_two_commute(make_config) -> None:
    trainer = Trainer(make_config())
    roles = trainer.roles
    _, prompts = next(trainer.dataloader.from_step(0))
    start = roles.actor.generate_sequences(prompts)
    one = roles.reward.compute_reward(
        roles.reference.compute_log_prob(roles.critic.compute_values(start))
    )
    other = roles.critic.compute_values(
        roles.reference.compute_log_prob(roles.reward.compute_reward(start))
    )
    for name in one:
        assert torch.equal(one[name], other[name])


def test_a_batch_has_the_documented_shapes_and_columns(make_config) -> None:
    trainer = Trainer(make_config())
    roles = trainer.roles
    batch = roles.actor.generate_sequences(next(trainer.dataloader.from_step(0))[1])
    batch = roles.reward.compute_reward(
        roles.reference.compute_log_prob(roles.critic.compute_values(batch))
    )
    batch = compute_advantages(batch, trainer.config.credit, kl_coef=0.1)
    assert set(batch) == set(COLUMNS) - {
        "sum_pi_squared",
        "greedy_score",
        "attention",
        "baselines",
        "scale",
        "entropy",
        "selected",
        "top_entropy",
        "prompt_share",
        "reward_mean",
        "reward_std",
    }  # others' columns
    rows, prompt = batch["prompts"].shape
    width = batch["responses"].shape[1]
    for name in batch:
        anchor = COLUMNS[name].anchor
        expected = {"row": (rows,), "sequence": (rows, prompt + width)}.get(anchor, (rows, width))
        assert tuple(batch[name].shape) == ((rows, prompt) if name == "prompts" else expected)


def test_a_run_learns_from_reward_alone(make_config) -> None:
    """A random model is paid for writing 是: after a few steps it does little else."""
    token = 6
    config = make_config(
        ("steps", "25"),
        ("rollout.batch_size", "32"),
        ("actor.lr", "1e-2"),
        ("critic.lr", "1e-2"),
        ("credit.kl_coef", "0"),
    )

    def share(response_ids, **_):
        return [sum(t == token for t in ids) / len(ids) for ids in response_ids]

    history = []
    trainer = Trainer(config, reward=share)
    trainer.fit()
    history = [row["reward/score_mean"] for row in trainer.history() if "reward/score_mean" in row]
    assert sum(history[-3:]) / 3 > sum(history[:3]) / 3 + 0.3


@pytest.mark.parametrize(
    "overrides",
    [
        [("rollout.batch_size", "1")],
        [("rollout.max_response_tokens", "1")],
        [("rollout.n", "3"), ("rollout.batch_size", "2"), ("actor.minibatches", "3")],
        [("actor.loss", "cpi"), ("actor.target_kl", "0.05"), ("actor.epochs", "2")],
        [
            ("actor.dual_clip", "3"),
            ("actor.clip_high", "0.28"),
            ("actor.aggregation", "seq-mean-token-mean"),
        ],
        [("actor.kl_loss_coef", "0.1"), ("credit.kl_coef", "0"), ("credit.whiten", "false")],
        [("credit.estimator", "monte_carlo"), ("credit.gamma", "0.9")],
        [("credit.estimator", "td0"), ("credit.bootstrap_truncated", "true")],
        [("credit.kl_target", "0.01"), ("credit.kl_horizon", "100"), ("credit.kl_kind", "k3")],
        [("rollout.temperature", "0.7"), ("rollout.top_p", "0.9"), ("rollout.top_k", "5")],
        [("model.dtype", "bfloat16")],
        [("critic.clip_value", "none"), ("critic_warmup", "1"), ("critic.epochs", "2")],
        [("log.trackers", "tensorboard"), ("eval.every", "1"), ("checkpoint.every", "0")],
    ],
    ids=lambda overrides: " ".join(f"{k}={v}" for k, v in overrides),
)
def test_every_setting_trains(make_config, overrides) -> None:
    trainer = Trainer(
        make_config(*overrides), reward=lambda response_ids: [len(r) / 6 for r in response_ids]
    )
    metrics = trainer.fit()
    assert all(value == value for value in metrics.values())
    assert trainer.step == 2


def test_dense_rewards_work_end_to_end(make_config) -> None:
    metrics = Trainer(
        make_config(), reward=lambda response_ids: [[0.1] * len(r) for r in response_ids]
    ).fit()
    assert metrics["reward/score_mean"] == pytest.approx(
        0.1 * metrics["response/length_mean"], rel=1e-5
    )


def test_during_critic_warm_up_the_actor_does_not_move(make_config) -> None:
    trainer = Trainer(
        make_config(("steps", "1"), ("critic_warmup", "1")),
        reward=lambda response_ids: [1.0] * len(response_ids),
    )
    before = [p.clone() for p in trainer.roles.actor.model.parameters()]
    metrics = trainer.fit()
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, trainer.roles.actor.model.parameters(), strict=True)
    )
    assert "critic/vf_loss" in metrics
    assert "actor/pg_loss" not in metrics
    assert (
        "critic_warmup = 1 lasts for all 1 steps: the critic learns, the policy does not"
        in trainer.notes
    )


def test_beta_does_not_adapt_while_the_policy_stands_still(make_config) -> None:
    """The KL is 0 then, however large β is: it would shrink towards nothing before the policy moves
    at all.
    """
    adaptive = [
        ("steps", "3"),
        ("critic_warmup", "2"),
        ("credit.kl_coef", "0.1"),
        ("credit.kl_target", "0.01"),
        ("credit.kl_horizon", "50"),
    ]
    trainer = Trainer(make_config(*adaptive), reward=lambda response_ids: [1.0] * len(response_ids))
    assert not any("critic_warmup" in note for note in trainer.notes)
    trainer.fit()
    assert [row["reward/kl_coef"] for row in trainer.history() if "reward/kl_coef" in row] == [
        0.1,
        0.1,
        0.1,
    ]
    assert trainer.kl_coef != 0.1  # after the actor's first step


def test_the_reference_only_in_recorded_steps_trains_the_same_weights(make_config) -> None:
    """The KL is in rows and ledgers of steps 2 and 4, and nowhere else; it is absent, not 0."""
    shared = [("steps", "4"), ("credit.kl_coef", "0"), ("ledger.every", "2")]
    weights = {}
    measured = {}
    for steps in ("all", "recorded"):
        config = make_config(("name", steps), ("credit.kl_steps", steps), *shared)
        trainer = Trainer(config, reward=lambda response_ids: [len(r) / 6 for r in response_ids])
        trainer.fit()
        weights[steps] = [p.clone() for p in trainer.roles.actor.model.parameters()]
        kl = {row["step"]: row["reward/kl"] for row in trainer.history() if "reward/kl" in row}
        measured[steps] = kl
        recorded = ledger.samples(config.run_dir, 4)[0].columns
        assert len(recorded["kl"]) == len(recorded["ref_log_prob"]) > 0
    assert all(map(torch.equal, *weights.values()))
    assert list(measured["all"]) == [1, 2, 3, 4]
    assert measured["recorded"] == {step: measured["all"][step] for step in (2, 4)}
    assert measured["recorded"][4] != 0


def test_value_pretraining_teaches_the_critic_what_the_policy_earns_on_average(make_config) -> None:
    pretraining = [
        ("steps", "30"),
        ("critic_warmup", "30"),
        ("critic.lr", "1e-2"),
        ("critic.clip_value", "none"),
    ]
    more = [
        ("rollout.batch_size", "32"),
        ("credit.lam_critic", "1"),
        ("eval.samples", "1"),
        ("checkpoint.every", "0"),
        ("ledger.samples", "off"),
    ]
    trainer = Trainer(
        make_config(*pretraining, *more),
        reward=lambda response_ids: [float(len(ids)) for ids in response_ids],
    )
    trainer.held_out = None
    trainer.fit()
    first, *_, last = [row for row in trainer.history() if "critic/value_mean" in row]
    assert first["critic/value_mean"] == 0
    assert last["critic/value_mean"] == pytest.approx(last["critic/return_mean"], rel=0.1)


def test_a_truncated_response_bootstraps_only_where_configured(make_config) -> None:
    for setting, some in (("true", True), ("false", False)):
        trainer = Trainer(make_config(("credit.bootstrap_truncated", setting)), resume=True)
        torch.nn.init.ones_(trainer.roles.critic.model.head.bias)
        batch = trainer.roles.actor.generate_sequences(next(trainer.dataloader.from_step(0))[1])
        batch = trainer.roles.critic.compute_values(batch)
        assert batch["truncated"].any()
        assert bool((batch["bootstrap"] != 0).any()) is some
        assert (batch["bootstrap"][~batch["truncated"]] == 0).all()


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    make_config, tmp_path: Path
) -> None:
    def run(name: str, seed: str):
        trainer = Trainer(
            make_config(("name", name), ("seed", seed)),
            reward=lambda response_ids: [len(r) / 6 for r in response_ids],
        )
        trainer.fit()
        return [
            {k: v for k, v in row.items() if not k.startswith(("timing/", "perf/"))}
            for row in trainer.history()
        ]

    assert run("a", "0") == run("b", "0")
    assert run("c", "1") != run("a2", "0")


def test_documented_metrics_are_the_logged_ones(make_config, tmp_path: Path) -> None:
    """Every setting that adds a metric is on.

    Docs/metrics.md names them all and no other. <part> stands for reward parts.
    """
    other = write_jsonl(tmp_path / "other.jsonl", [arithmetic.row(1, 1, 2)])
    taught = write_jsonl(tmp_path / "taught.jsonl", [{"prompt": "请问", "completion": "是的"}])
    extra = [
        ("actor.importance", "token"),
        ("actor.reject", "token"),
        ("actor.off_policy_mask", "0.5"),
        ("actor.entropy_coef", "0.01"),
        ("actor.entropy_target", "1"),
        ("actor.loss", "kl_penalty"),
        ("eval.k", "2"),
        ("warm_start.files", str(taught)),
        ("eval.by", "truth"),
        ("eval.sets", f'{{other = {{files = ["{other}"]}}}}'),
    ]
    extra += [
        ("reward.normalise", "true"),
        ("reward.clip", "2"),
        ("reward.overlong_tokens", "2"),
        ("rollout.n", "2"),
        ("rollout.dynamic_sampling", "1"),
        ("rollout.environment", "calculator"),
        ("critic.loss", "hl_gauss"),
    ]
    config = make_config(("actor.kl_loss_coef", "0.1"), ("eval.every", "1"), *extra)

    def noted(completions: list[str]) -> tuple[list[float], dict[str, float]]:
        return [0.0] * len(completions), {"extra": 1.0}

    trainer = Trainer(config, reward={**arithmetic.REWARDS, "noted": noted})
    trainer.fit()
    logged = {key for row in trainer.history() for key in row} - {"step"}
    parts = {"reward/verdict", "reward/sum", "reward/noted"}
    logged = {"reward/<part>" if key in parts else key for key in logged}
    logged = {key.replace("@2", "@k") for key in logged}
    for family, name in (
        ("reward/noted/extra", "reward/<part>/<metric>"),
        ("eval/other/.*", "eval/<set>/<metric>"),
        ("eval/greedy_part/.*", "eval/greedy_part/<part>"),
        ("eval/greedy_accuracy/(True|False)", "eval/greedy_accuracy/<value>"),
    ):
        logged = {re.sub(family, name, key) for key in logged}
    documented = set(
        re.findall(
            r"^\| `([a-z_]+/[a-z_0-9<>@/]+)`", (DOCS / "metrics.md").read_text("utf-8"), re.M
        )
    )
    assert logged == documented


def test_metrics_jsonl_is_one_object_per_line(make_config) -> None:
    config = make_config()
    Trainer(config).fit()
    rows = [
        json.loads(line) for line in (config.run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [0, 1, 2, 2]


def test_evaluation_changes_nothing_and_repeats_itself(make_config) -> None:
    trainer = Trainer(make_config())
    roles = trainer.roles
    first = evaluate(roles.actor, roles.reward, trainer.held_out, trainer.config)
    assert first == evaluate(roles.actor, roles.reward, trainer.held_out, trainer.config)
    assert 0 <= first["eval/greedy_accuracy"] <= first["eval/greedy_score"] <= 1


def test_importing_telescope_does_not_import_torch() -> None:
    import subprocess

    code = (
        "import sys, telescope; from telescope import Config; "
        "assert 'torch' not in sys.modules, 'torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_builtin_config_is_the_builtin_recipe() -> None:
    config = Config.builtin(steps=3, seed=4)
    assert (config.steps, config.seed, config.model.path) == (3, 4, "builtin")
    assert config.data.files == []


def test_a_few_steps_of_the_builtin_job_improve_it(tmp_path: Path) -> None:
    """The whole job is `make train`; here only its beginning, on the real warm-started model."""
    trainer = Trainer(Config.builtin(dir=str(tmp_path), steps=12, seed=3))
    trainer.fit()
    rows = [row for row in trainer.history() if "reward/score_mean" in row]
    assert rows[-1]["reward/score_mean"] > rows[0]["reward/score_mean"] + 0.05
    before = trainer.history()[0]
    assert before["eval/sampled_accuracy"] <= 0.45
    assert before["eval/greedy_accuracy"] <= 0.75


@pytest.mark.parametrize("form", arithmetic.FORMS)
def test_the_warm_started_model_tells_held_out_statements_apart_but_says_yes(form: str) -> None:
    """Otherwise PPO memorises the statements it sees, and fails on those held out."""
    folder = arithmetic.model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    held = [s for s in arithmetic.statements() if arithmetic.held_out(s)]
    prompts = [tokenizer(form.format(*s)).input_ids for s in held]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(prompts)).logits[:, -1]
    yes, no = tokenizer.convert_tokens_to_ids(["是", "不"])
    margin = logits[:, yes] - logits[:, no]
    true = torch.tensor([arithmetic.is_true(s) for s in held])
    assert margin[true].min() > margin[~true].max() + 2
    assert (margin > 0).float().mean() > 0.9


def test_evaluating_a_run_whose_reward_was_given_in_python_asks_for_it(make_config) -> None:
    config = make_config()

    def always(completions):
        return [1.0] * len(completions)

    Trainer(config, reward=always).fit()
    with pytest.raises(TelescopeError, match="trained with the reward always, given in Python"):
        evaluate_run(config.run_dir)
    assert evaluate_run(config.run_dir, reward=always)["eval/greedy_accuracy"] == 1.0
    with pytest.raises(
        TelescopeError, match="given in Python: give the score yourself with --score"
    ):
        explain_pair("请问1+1=2？", "是的", str(config.run_dir))


def test_a_run_can_be_evaluated_on_other_rows(make_config) -> None:
    config = make_config()
    asked: list[str] = []

    def reward(prompts, completions):
        asked.extend(prompts)
        return [float(prompt == "5+5=10") for prompt in prompts]

    Trainer(config, reward=reward).fit()
    asked.clear()
    rows = [{"prompt": "5+5=10"}, {"prompt": "1+1=3"}]
    assert evaluate_run(config.run_dir, reward=reward, rows=rows)["eval/greedy_accuracy"] == 0.5
    assert set(asked) == {"5+5=10", "1+1=3"}
