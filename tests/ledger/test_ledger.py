from __future__ import annotations

import json
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from telescope import Trainer, ledger
from telescope.batch import COLUMNS
from telescope.errors import TelescopeError
from telescope.ledger.reader import path_of
from telescope.ledger.schema import METADATA, PER_TOKEN, SCHEMA
from telescope.ledger.table import TokenBytes
from telescope.models.forward import policy_forward


def reward(response_ids):
    return [len(r) / 6 for r in response_ids]


@pytest.fixture
def recorded(make_config):
    """A run of one step with two epochs of two minibatches, its last batch, and what the losses were given."""
    config = make_config(
        ("steps", "1"),
        ("actor.epochs", "2"),
        ("actor.minibatches", "2"),
        ("critic.epochs", "2"),
        ("ledger.samples", "5"),
    )
    trainer = Trainer(config, reward=reward)
    seen = {}
    original = trainer.roles.actor.update_actor
    trainer.roles.actor.update_actor = lambda batch, ledger: (
        seen.update(batch=batch) or original(batch, ledger)
    )
    trainer.fit()
    return config, seen["batch"]


def test_what_is_read_back_is_what_the_batch_held(recorded) -> None:
    config, batch = recorded
    samples = ledger.samples(config.run_dir, 1)
    assert len(samples) == 5
    for i, sample in enumerate(samples):
        n = len(sample)
        assert sample.token_ids == batch.info[i].response.ids
        assert set(sample.columns) - set(batch) == {"entropy"}  # the update's own
        for name in sample.columns.keys() & set(batch):
            assert sample.columns[name] == batch[name][i, :n].tolist()
        assert (sample.whiten_mean, sample.whiten_std) == (
            float(batch["whiten_mean"][i]),
            float(batch["whiten_std"][i]),
        )
        assert sample.score == batch.scores[i].total
        assert sample.parts == {"reward": sample.score}
        assert sample.prompt == batch.info[i].prompt
        text = b"".join(sample.token_bytes).decode()
        assert re.sub("<eos>|<pad>|<unk>", "", text) == sample.response


def test_short_values_of_the_data_are_recorded_and_lists_are_not(make_config) -> None:
    data = {"answer": "2", "level": 3, "long": "x" * 1000, "half": "\udc80", "choices": ["1", "2"]}
    rows = [{"prompt": f"请问1+{n}=2？", **data} for n in range(4)]
    config = make_config(("steps", "1"), ("rollout.batch_size", "4"))
    Trainer(config, train_dataset=rows, reward=lambda completions: [1.0] * len(completions)).fit()
    (sample, *_) = ledger.samples(config.run_dir, 1)
    assert sample.data == {"answer": "2", "level": "3", "long": "x" * 300, "half": "?"}


def test_every_row_has_each_of_its_updates_once_and_in_order(recorded) -> None:
    config, batch = recorded
    for i, sample in enumerate(ledger.samples(config.run_dir, 1)):
        assert [u.epoch for u in sample.actor_updates] == [0, 1]
        assert [u.epoch for u in sample.critic_updates] == [0, 1]
        for update in sample.actor_updates:
            expected = [
                torch.exp(torch.tensor(a) - torch.tensor(b))
                for a, b in zip(update.log_probs, update.old_log_probs, strict=True)
            ]
            assert update.ratio == pytest.approx([float(e) for e in expected], abs=1e-6)
        first = sample.actor_updates[0]
        if first.minibatch == 0:
            assert first.ratio == [1.0] * len(sample)
            assert first.loss == pytest.approx([-a for a in sample.columns["whitened"]], abs=1e-6)
        else:
            assert first.old_log_probs == batch["old_log_probs"][i, : len(sample)].tolist()
        assert sample.critic_updates[0].values == pytest.approx(sample.columns["values"], abs=1e-5)


def test_the_settings_are_those_of_the_step(recorded) -> None:
    config, _ = recorded
    sample = ledger.samples(config.run_dir, 1)[0]
    assert sample.settings.credit.lam == config.credit.lam
    assert sample.settings.credit.kl_coef == config.credit.kl_coef
    assert (sample.run, sample.step, sample.index, sample.count) == ("run", 1, 0, 5)


def test_the_recorded_coefficients_are_those_of_the_step_not_of_the_config(make_config) -> None:
    adaptive = [("credit.kl_target", "1e-6"), ("credit.kl_horizon", "1")]
    bonus = [("actor.entropy_coef", "0.5"), ("actor.entropy_target", "10")]
    short = [("steps", "2"), ("eval.samples", "1"), ("checkpoint.every", "0")]
    trainer = Trainer(make_config(*adaptive, *bonus, *short))
    trainer.fit()
    used = {row["step"]: row for row in trainer.history() if "reward/kl_coef" in row}
    assert used[2]["reward/kl_coef"] != trainer.config.credit.kl_coef
    for step in (1, 2):
        settings = ledger.samples(trainer.config.run_dir, step)[0].settings
        assert settings.credit.kl_coef == used[step]["reward/kl_coef"]
        assert 0 < used[step]["actor/entropy_coef"] < 0.5
        expected = pytest.approx(used[step]["actor/entropy_coef"], rel=1e-9)
        assert settings.actor.entropy_coef == expected


def test_the_entropy_is_that_of_the_policy_before_the_first_update(make_config) -> None:
    config = make_config(
        ("steps", "1"), ("actor.epochs", "2"), ("actor.minibatches", "1"), ("actor.lr", "0.1")
    )
    trainer = Trainer(config, reward=reward)
    actor = trainer.roles.actor
    original = actor.update_actor
    seen = {}

    def update(batch, ledger):
        temperature = config.rollout.temperature
        with torch.no_grad():
            seen["before"] = policy_forward(
                actor.model, batch, temperature=temperature, entropy="value"
            ).entropy
        metrics = original(batch, ledger)
        seen["mask"] = batch.mask
        return metrics

    actor.update_actor = update
    trainer.fit()
    samples = ledger.samples(config.run_dir, 1)
    assert samples[0].actor_updates[0].log_probs != samples[0].actor_updates[1].log_probs
    for i, sample in enumerate(samples):
        n = len(sample)
        before = seen["before"][i, :n].where(seen["mask"][i, :n], 0.0)
        assert sample.columns["entropy"] == pytest.approx(before.tolist(), abs=1e-5)
        assert max(sample.columns["entropy"]) > 0.1


def test_a_step_without_a_policy_update_has_no_entropy(make_config) -> None:
    config = make_config(("steps", "1"), ("critic_warmup", "1"))
    Trainer(config, reward=reward).fit()
    assert "entropy" not in ledger.read(config.run_dir, 1).column_names
    assert "entropy" not in ledger.samples(config.run_dir, 1)[0].columns


def test_the_schema_is_made_from_the_column_table() -> None:
    assert set(PER_TOKEN) == {
        name for name, c in COLUMNS.items() if c.anchor in ("action", "state")
    } - {"selected", "top_entropy"}  # noted by their update
    assert set(PER_TOKEN) <= set(SCHEMA.names)


@pytest.mark.parametrize(("setting", "rows"), [("all", 8), ("3", 3), ("100", 8)])
def test_as_many_samples_are_recorded_as_asked_for(make_config, setting: str, rows: int) -> None:
    config = make_config(("steps", "1"), ("ledger.samples", setting))
    Trainer(config, reward=reward).fit()
    assert ledger.read(config.run_dir, 1).num_rows == rows


def test_a_ledger_that_is_off_writes_nothing_and_one_with_every_skips_steps(make_config) -> None:
    off = make_config(("name", "off"), ("ledger.samples", "off"))
    Trainer(off, reward=reward).fit()
    assert ledger.steps(off.run_dir) == []
    some = make_config(("name", "some"), ("steps", "4"), ("ledger.every", "2"))
    Trainer(some, reward=reward).fit()
    assert ledger.steps(some.run_dir) == [2, 4]


def test_recording_changes_no_number_of_the_run(make_config) -> None:
    rows = []
    for setting in ("all", "off"):
        trainer = Trainer(
            make_config(("name", setting), ("ledger.samples", setting)), reward=reward
        )
        trainer.fit()
        rows.append(
            [
                {k: v for k, v in row.items() if not k.startswith(("timing/", "perf/"))}
                for row in trainer.history()
            ]
        )
    assert rows[0] == rows[1]


def test_a_missing_step_and_a_missing_sample_are_named(recorded) -> None:
    config, _ = recorded
    with pytest.raises(TelescopeError, match=r"no ledger of step 7 in .*: it has steps 1 to 1"):
        ledger.read(config.run_dir, 7)
    with pytest.raises(TelescopeError, match="samples 0 to 4; there is no 9"):
        ledger.samples(config.run_dir, 1, [9])


def test_a_stray_file_in_the_ledger_is_no_step(tmp_path) -> None:
    (tmp_path / "ledger").mkdir()
    for name in (
        "step_000010",
        "step_000002",
        "step_1234567",
        "step_abc",
        "step_000002 (copy)",
        "step_2",
        "step_",
    ):
        (tmp_path / "ledger" / f"{name}.parquet").touch()
    assert ledger.steps(tmp_path) == [2, 10, 1234567]


def test_a_damaged_file_and_one_of_a_newer_version_are_refused(recorded) -> None:
    config, _ = recorded
    path = path_of(config.run_dir, 1)
    table = parquet.read_table(path)
    meta = json.loads(table.schema.metadata[METADATA]) | {"version": 99}
    parquet.write_table(table.replace_schema_metadata({METADATA: json.dumps(meta).encode()}), path)
    with pytest.raises(TelescopeError, match="newer Telescope"):
        ledger.read(config.run_dir, 1)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TelescopeError, match="cannot be read"):
        ledger.read(config.run_dir, 1)


def test_a_full_disk_while_writing_the_ledger_is_one_clear_line(
    make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("telescope.ledger.table.parquet.write_table", full)
    with pytest.raises(TelescopeError, match=r"cannot write .*step_000001\.parquet: No space left"):
        Trainer(make_config(("eval.completions", "false")), reward=reward).fit()


def test_reading_needs_no_torch(recorded) -> None:
    config, _ = recorded
    code = f"""
import sys
import telescope.ledger
frame = telescope.ledger.read({str(config.run_dir)!r}, 1)
assert telescope.ledger.samples({str(config.run_dir)!r}, 1)
assert 'torch' not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_character_split_over_tokens_keeps_its_bytes() -> None:
    alphabet = {char: i for i, char in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    backend = Tokenizer(models.BPE(alphabet, []))
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    ids = tokenizer("中 a").input_ids
    assert [TokenBytes(tokenizer)[i] for i in ids] == [b"\xe4", b"\xb8", b"\xad", b" ", b"a"]


def test_an_old_file_opens_when_columns_were_added_since(recorded) -> None:
    config, _ = recorded
    path = path_of(config.run_dir, 1)
    table = parquet.read_table(path).drop(["rollout_log_probs"])
    assert isinstance(table, pa.Table)
    metadata = {METADATA: table.schema.metadata[METADATA]}  # an old file has no checksum
    parquet.write_table(table.replace_schema_metadata(metadata), path)
    assert "rollout_log_probs" not in ledger.samples(config.run_dir, 1)[0].columns
