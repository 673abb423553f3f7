"""What a user can get wrong about a model: the message names the folder and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    T5Config,
)

from telescope.commands.open import _tokenizer as open_tokenizer
from telescope.config import ModelConfig
from telescope.errors import TelescopeError
from telescope.models.load import load_policy, load_reward_model, load_tokenizer, stop_ids
from telescope.trainer import Trainer
from tests.refusals import Job, edit_json, refusal


def test_a_missing_model_folder_is_named(job: Job, tmp_path: Path):
    message = refusal(job(("model.path", str(tmp_path / "nosuch"))))
    assert f"{tmp_path / 'nosuch'} does not exist" in message
    assert "give a Hugging Face model folder or a hub name" in message


def test_a_missing_tokenizer_folder_is_named(job: Job):
    with pytest.raises(TelescopeError, match="model folder nowhere/ does not exist"):
        Trainer(job(("model.tokenizer_path", "nowhere/")))


def test_a_name_without_an_owner_is_refused_without_asking_the_hub(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)  # not called
    message = refusal(job(("model.path", "qwen2")))
    assert "there is no model folder qwen2, and a name on the hub has an owner" in message


def test_a_folder_that_is_no_model_is_named(job: Job, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    message = refusal(job(("model.path", str(tmp_path / "empty"))))
    assert f"{tmp_path / 'empty'} has no config.json" in message


def test_a_name_that_no_model_can_have_is_refused(job: Job):
    assert "there is no model folder my model, and" in refusal(job(("model.path", "my model")))


@pytest.fixture
def with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder whose class is in a file beside it. Who is asked whether to run it says yes."""
    monkeypatch.setattr("builtins.input", lambda _: "y")
    folder = tmp_path / "with-code"
    folder.mkdir()
    (folder / "own.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    names = dict.fromkeys(("AutoConfig", "AutoModelForSequenceClassification"), "own.Own")
    settings = {"model_type": "own", "auto_map": names | {"AutoTokenizer": ["own.Own", None]}}
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    "load",
    [
        lambda path: load_reward_model(path, torch.device("cpu")),
        lambda path: open_tokenizer(path),
        lambda path: stop_ids(None, SimpleNamespace(name_or_path=path, eos_token_id=1)),
    ],
    ids=["reward-model", "tokenizer-of-open", "generation-settings"],
)
def test_code_beside_weights_is_neither_run_nor_offered(
    load: Callable[[str], Any], with_code: Path
):
    with suppress(TelescopeError):
        load(str(with_code))
    assert not (with_code.parent / "was-run").exists()


def test_a_folder_named_without_a_slash_is_a_folder(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "model folder empty has no config.json" in refusal(job(("model.path", "empty")))


@pytest.mark.parametrize("key", ["model.critic_path", "reward.model"])
def test_a_missing_critic_or_reward_model_is_named(key: str, job: Job, tmp_path: Path):
    assert f"{tmp_path / 'nosuch'} does not exist" in refusal(job((key, str(tmp_path / "nosuch"))))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "nosuch"}'),
        ("tokenizer.json", b"{"),
        ("model.safetensors", b""),
        ("model.safetensors", b"half a file"),
        ("model.safetensors", None),
    ],
    ids=[
        "config-broken",
        "config-of-unknown-type",
        "tokenizer-broken",
        "weights-empty",
        "weights-cut",
        "weights-missing",
    ],
)
def test_a_damaged_model_folder_is_named(
    file: str, content: bytes | None, job: Job, model_copy: Path
):
    if content is None:
        (model_copy / file).unlink()
    else:
        (model_copy / file).write_bytes(content)
    assert str(model_copy) in refusal(job(("model.path", str(model_copy))))


def test_a_tokenizer_without_eos_is_refused(job: Job, model_copy: Path):
    edit_json(model_copy / "tokenizer_config.json", eos_token=None)
    message = refusal(job(("model.path", str(model_copy))))
    assert f"the tokenizer of {model_copy} has no EOS token" in message
    assert "set `eos_token` in its tokenizer_config.json" in message


def test_a_tokenizer_without_pad_trains_exactly_as_one_with_pad(
    job: Job, model_copy: Path, tmp_path: Path
):
    """Masks come from lengths: which id fills the gaps, even EOS itself, changes nothing."""
    edit_json(model_copy / "tokenizer_config.json", pad_token=None)
    rows, lengths = [], []

    def exact(
        prompts: Sequence[str], completions: Sequence[str], response_ids: Sequence[list[int]]
    ) -> list[float]:
        lengths.append([len(ids) for ids in response_ids])
        return [float(len(ids)) for ids in response_ids]

    for name, path in (("without", model_copy), ("with", None)):
        settings = [
            ("name", name),
            *([("model.path", str(path))] if path else []),
            ("rollout.n", "8"),
        ]
        trainer = Trainer(job(*settings), reward=exact)
        assert trainer.roles.actor.tokenizer.pad_token_id == (1 if name == "without" else 0)
        trainer.fit()
        rows.append(
            [
                {k: v for k, v in row.items() if not k.startswith(("timing/", "perf/"))}
                for row in trainer.history()
            ]
        )
    assert min(lengths[0]) < max(lengths[0])  # so there is padding
    assert rows[0] == rows[1]
    assert rows[0][1]["response/length_mean"] == sum(lengths[0]) / len(lengths[0])


def test_a_setting_that_transformers_ignores_with_a_warning_is_switched_off(
    model_copy: Path, monkeypatch: pytest.MonkeyPatch
):
    """As in the folders of GPT-2 and SmolLM2: `clean_up_tokenization_spaces` of a BPE tokenizer."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, tokenization_utils_tokenizers

    bpe = Tokenizer(models.BPE(vocab={"<end>": 0, "a": 1, " ": 2, ".": 3}, merges=[]))
    PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<end>", clean_up_tokenization_spaces=True
    ).save_pretrained(model_copy)
    warned: list[str] = []
    monkeypatch.setattr(tokenization_utils_tokenizers.logger, "warning_once", warned.append)
    tokenizer = load_tokenizer(str(model_copy))
    assert tokenizer.decode([1, 2, 3]).replace(" ", "") == "a."
    assert warned == []


def test_gradient_checkpointing_is_switched_on_without_a_warning(
    model_copy: Path, recwarn: pytest.WarningsRecorder
):
    config = ModelConfig(path=str(model_copy), gradient_checkpointing=True)
    load_policy(config, torch.device("cpu"))
    assert [str(warning.message) for warning in recwarn] == []


def test_a_model_that_looks_ahead_is_refused(job: Job, tmp_path: Path, tiny_model: Path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = BertConfig(vocab_size=600, num_hidden_layers=2, **sizes)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "bert")
    message = refusal(job(("model.path", str(tmp_path / "bert"))))
    assert f"{tmp_path / 'bert'} is no causal language model: what it says of a token" in message


def test_a_model_without_a_decoder_or_a_tokenizer_is_refused_in_our_words(
    job: Job, tmp_path: Path, tiny_model: Path
):
    folder = tmp_path / "t5"
    T5Config(vocab_size=600).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    assert "t5 is no causal language model" in refusal(job(("model.path", str(folder))))
    bare = tmp_path / "bare"
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(bare)
    message = refusal(job(("model.path", str(bare))))
    assert "it has no tokenizer files, such as tokenizer.json" in message


def test_a_policy_that_cannot_write_eos_is_refused(job: Job, tmp_path: Path, tiny_model: Path):
    folder = tmp_path / "small"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.resize_token_embeddings(tokenizer.eos_token_id)
    model.config.pad_token_id = None
    model.config.eos_token_id = None
    model.save_pretrained(folder)
    assert f"EOS is number {tokenizer.eos_token_id}: no response could end" in refusal(
        job(("model.path", str(folder)))
    )
