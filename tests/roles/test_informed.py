"""critic.reads: the critic sees a column of the data, the policy does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from telescope import Trainer, ledger
from telescope.build import build_local_roles
from telescope.commands import main
from telescope.data.build import build_data
from telescope.run.metrics import read_metrics
from tests.refusals import refusal, write_jsonl
from tests.resumed import whole_and_resumed

HIDDEN = ["对", "不对"]


def hidden_reward(hint: list[str], **_: object) -> list[float]:
    """Pays by the column alone, so only a critic that reads it can know the reward."""
    return [1.0 if text == HIDDEN[0] else 0.0 for text in hint]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Sixteen equal prompts; the column says which half is paid."""
    half = [{"prompt": "1+1=2", "hint": hint, "extra": {"hint": hint}} for hint in HIDDEN]
    return write_jsonl(tmp_path / "rows.jsonl", half * 8)


@pytest.fixture
def make(make_config, rows: Path):
    def made(*overrides: tuple[str, str]):
        return make_config(("data.files", f'["{rows}"]'), ("rollout.batch_size", "16"), *overrides)

    return made


def prepared(config):
    roles = build_local_roles(config, hidden_reward)
    head = getattr(roles.critic, "critic", roles.critic).model.head
    torch.nn.init.normal_(head.weight, std=0.5, generator=torch.Generator().manual_seed(0))
    train, _ = build_data(config, roles.actor.tokenizer)
    return roles, roles.actor.generate_sequences(train.take(range(4), seed=5))


def test_values_are_those_of_the_inner_critic_for_the_text_before_the_prompt(make) -> None:
    roles, batch = prepared(make(("critic.reads", "hint")))
    told = roles.critic.compute_values(batch)
    tokenizer = roles.actor.tokenizer
    for row, info in enumerate(batch.info):
        text = tokenizer(f"{info.data['hint']}\n\n", add_special_tokens=False)["input_ids"]
        prompt = text + batch.prompt_ids()[row]
        ids = torch.tensor([prompt + info.response.ids])
        states = roles.critic.critic.model.outputs(
            roles.critic.critic.model.backbone(input_ids=ids).last_hidden_state
        )
        count = len(info.response.ids)
        expected = states[0, len(prompt) - 1 : len(prompt) - 1 + count, 0]  # before each token
        torch.testing.assert_close(told["values"][row, :count], expected, atol=1e-5, rtol=1e-5)


def test_the_longer_prompts_are_made_once_per_batch(make, monkeypatch) -> None:
    roles, batch = prepared(make(("critic.reads", "hint")))
    batch = roles.critic.compute_values(batch)
    monkeypatch.setattr(roles.critic, "_informed_columns", None)  # a second time would fail
    assert roles.critic.training_flops(batch) > 0


def test_rows_that_differ_in_the_column_alone_differ_in_v(make) -> None:
    roles, batch = prepared(make(("critic.reads", "hint")))
    first = roles.critic.compute_values(batch)["values"][:, 0]  # nothing of the response is seen
    assert first[0] == pytest.approx(float(first[2]), abs=1e-6)
    assert abs(float(first[0] - first[1])) > 1e-3
    blind, batch = prepared(make())
    first = blind.critic.compute_values(batch)["values"][:, 0]
    assert float(first[0] - first[1]) == pytest.approx(0, abs=1e-6)


def test_the_policy_and_the_reference_see_the_prompt_alone(make) -> None:
    roles, batch = prepared(make(("critic.reads", "hint")))
    plain, alone = prepared(make())
    after = roles.reference.compute_log_prob(roles.critic.compute_values(batch))
    expected = plain.reference.compute_log_prob(alone)
    for name in ("prompts", "input_ids", "attention_mask", "responses", "old_log_probs"):
        assert torch.equal(after[name], alone[name]), name
    assert torch.equal(after["ref_log_prob"], expected["ref_log_prob"])


def test_only_a_critic_that_reads_it_learns_what_the_column_pays(make) -> None:
    explained = {}
    for reads in ("hint", None):
        more = (("critic.reads", reads),) if reads else ()
        config = make(
            ("name", f"reads-{reads}"),
            ("steps", "12"),
            ("critic.lr", "1e-2"),
            ("critic.epochs", "4"),
            ("credit.lam", "1"),
            ("credit.kl_coef", "0"),
            ("checkpoint.every", "0"),
            *more,
        )
        Trainer(config, reward=hidden_reward).fit()
        last = read_metrics(config.run_dir / "metrics.jsonl")[-2:]
        explained[reads] = max(row.get("critic/explained_variance", -1.0) for row in last)
    assert explained["hint"] > 0.9
    assert explained[None] < 0.2


def test_the_ledger_notes_the_terms_of_the_informed_critic(make) -> None:
    config = make(("critic.reads", "extra.hint"))  # a column within a column
    Trainer(config, reward=hidden_reward).fit()
    sample = ledger.samples(config.run_dir, 2)[0]
    noted = sample.critic_updates[0].values
    assert noted == pytest.approx(sample.columns["values"], abs=1e-5)


@pytest.mark.parametrize(("lang", "said"), [("en", "critic also reads hint"), ("zh", "critic 还读了数据列 hint")])  # fmt: skip
def test_explain_says_what_the_critic_reads(make, capsys, lang: str, said: str) -> None:
    for name, more in (("told", [("critic.reads", "hint")]), ("blind", [])):
        config = make(("name", name), ("steps", "1"), *more)
        Trainer(config, reward=hidden_reward).fit()
        capsys.readouterr()
        main(["explain", str(config.run_dir), "--lang", lang])
        assert (said in " ".join(capsys.readouterr().out.split())) == (name == "told")


def test_resume_goes_on_bit_for_bit(make) -> None:
    settings = (("steps", "3"), ("critic.reads", "hint"))
    whole_and_resumed(make, *settings, reward=hidden_reward, after=2)


def test_a_checkpoint_belongs_to_what_its_critic_reads(make) -> None:
    config = make(("critic.reads", "hint"))
    Trainer(config, reward=hidden_reward).fit(until=1)
    message = refusal(make(), hidden_reward, resume=True)
    assert "was trained with critic.reads = hint, and the config says the prompt alone" in message


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        ("hind", "prompt 1 has no such column; its columns are hint, extra (a.b is b inside of a)"),
        ("extra.hind", "has no such column"),
        ("extra", "has dict there; name a column of texts or numbers"),
    ],
)
def test_a_column_that_cannot_be_read_is_named(make, reads: str, said: str) -> None:
    message = refusal(make(("critic.reads", reads), ("data.shuffle", "false")), hidden_reward)
    assert said in message


def test_rows_that_are_too_long_for_the_model_are_refused(make_config, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "long.jsonl", [{"prompt": "1+1=2", "hint": "对" * 80}] * 8)
    config = make_config(("data.files", f'["{rows}"]'), ("critic.reads", "hint"))
    message = refusal(config, hidden_reward)
    assert "more than the model's 64 positions: lower data.max_prompt_tokens" in message


def test_without_a_critic_the_setting_is_refused(make_config) -> None:
    settings = (("credit.estimator", "grpo"), ("rollout.n", "2"), ("critic.reads", "hint"))
    with pytest.raises(
        Exception, match=r"critic\.reads = hint does nothing with credit\.estimator"
    ):
        make_config(*settings)
