"""telescope explain, report and view, as a person calls them."""

from __future__ import annotations

import itertools
import json
import math
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from telescope import Trainer, ledger
from telescope.algorithms.definitions.notation import num
from telescope.batch import COLUMNS
from telescope.commands import main
from telescope.explain.arithmetic import fill
from telescope.explain.dialogue import Dialogue
from telescope.explain.example import RIGHT, WRONG
from telescope.explain.sample import Sample
from telescope.explain.tables import metaphors
from telescope.explain.trace import Tracer, traces
from telescope.viewer.payload import page_traces
from tests import ROOT
from tests.commands.calls import refusal
from tests.fakes import tiny_config
from tests.viewer.fake import data_of_report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Two steps with clipping, KL, several updates per step, and bootstrapped truncation."""
    settings = {
        "actor.epochs": "2",
        "actor.minibatches": "2",
        "actor.lr": "3e-2",
        "critic.epochs": "2",
        "critic.lr": "1e-1",
        "credit.bootstrap_truncated": "true",
        "credit.gamma": "0.9",
        "credit.kl_coef": "0.1",
        "ledger.samples": "all",
    }
    config = tiny_config(tmp_path_factory.mktemp("explain"), tiny_model, *settings.items())
    Trainer(config, reward=lambda response_ids: [len(set(r)) / 6 for r in response_ids]).fit()
    (config.run_dir.parent / "two.json").write_text('{"values": [[0.1], [0.2]]}')
    return config.run_dir


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `telescope explain` prints."""
    main(["explain", *arguments])
    return capsys.readouterr().out


def all_samples(run: Path) -> list[Sample]:
    return [sample for step in ledger.steps(run) for sample in ledger.samples(run, step)]


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("level", ["expert", "kid"])
def test_every_recomputed_number_of_a_run_carries_a_tick(
    run: Path, lang: str, level: str, capsys
) -> None:
    for sample in range(8):
        out = explained(capsys, str(run), "--sample", str(sample), "--lang", lang, "--level", level)
        assert "✓" in out
        assert "✗" not in re.sub(r"\d+ ✓ 0 ✗", "", out)


def test_every_trace_of_every_token_and_update_agrees_with_what_was_recorded(run: Path) -> None:
    checked = 0
    clipped = 0
    for sample in all_samples(run):
        for t, update in itertools.product(range(len(sample)), range(len(sample.actor_updates))):
            for trace in traces(sample, t, update):
                assert trace.ok is not False, (sample.step, sample.index, t, trace)
                checked += trace.ok is not None
        clipped += sum(any(update.clipped) for update in sample.actor_updates)
    assert checked > 1000
    assert clipped > 0  # some tokens were clipped


def test_the_json_has_the_numbers_of_the_terminal(run: Path, capsys) -> None:
    data = json.loads(explained(capsys, str(run), "--step", "1", "--sample", "2", "--json"))
    sample = ledger.samples(run, 1, [2])[0]
    assert data["sample"]["columns"]["advantages"] == sample.columns["advantages"]
    assert [t["result"] for t in data["traces"][0]] == [t.result for t in traces(sample, 0)]
    assert all(t["ok"] is not False for token in data["traces"] for t in token)


def test_the_json_of_a_long_response_fills_its_columns_once(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"values": [0.5] * 30, "score": 1}))
    filled: list[Sample] = []

    def counting_fill(sample: Sample) -> Sample:
        filled.append(sample)
        return fill(sample)

    monkeypatch.setattr("telescope.explain.trace.fill", counting_fill)
    printed = json.loads(explained(capsys, "--numbers", str(tmp_path / "x.json"), "--json"))
    assert len(printed["traces"]) == 30
    assert len(filled) == 1


def test_the_json_is_strict_whatever_was_recorded(run: Path, capsys, monkeypatch) -> None:
    sample = ledger.samples(run, 1, [0])[0]
    values = [math.inf, math.nan, *sample.columns["values"][2:]]
    broken = replace(
        sample, score=math.nan, prompt="\ud800", columns={**sample.columns, "values": values}
    )
    monkeypatch.setattr(ledger, "samples", lambda *_: [broken])
    out = explained(capsys, str(run), "--json")
    out.encode()
    data = json.loads(out, parse_constant=pytest.fail)
    assert (data["sample"]["score"], data["sample"]["prompt"]) == (None, "\ud800")
    assert data["sample"]["columns"]["values"][:2] == [None, None]


def test_numbers_typed_by_hand_are_explained(tmp_path: Path, capsys) -> None:
    path = tmp_path / "three.toml"
    path.write_text(
        "tokens = ['a', 'b', 'c']\n"
        "rewards = [0, 0, 1]\n"
        "values = [0.3, 0.4, 0.6]\n"
        "gamma = 1\n"
        "lam = 0.95\n"
    )
    out = explained(capsys, "--numbers", str(path), "--token", "0", "--lang", "en")
    assert "0.651" in out
    assert "0.951" in out


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_batch_typed_by_hand_shows_its_whitening_beside_that_of_the_row(
    lang: str, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "two.json"
    advantages = [[0.651, 0.58, 0.4, 0], [0.1, -0.2, 0, 0]]
    mask = [[1, 1, 1, 0], [1, 1, 0, 0]]
    path.write_text(json.dumps({"advantages": advantages, "mask": mask}))
    asked = ["--numbers", str(path), "--lang", lang]
    first = explained(capsys, *asked, "--token", "0")
    out = " ".join(first.split())  # however wide the terminal is
    for said in (
        {"zh": "第 0 条（从 0 数，共 2 条）", "en": "sample 0 (counted from 0, of 2)"}[lang],
        "1.531/5 = 0.3062",
        "0.5014/4 = 0.1254",
        "0.651 0.974 0.830",  # A, Â by the batch, Â by the row
        "0.580 0.773 0.281",
        "0.400 0.265 -1.110",
    ):
        assert said in out
    second = " ".join(explained(capsys, *asked, "--sample", "1", "--token", "1").split())
    for said in (
        "(−0.2 − 0.3062)/0.3541 = −1.43",
        "0.100 -0.582 0.707",
        "(−0.2 − (−0.05))/0.2121 = −0.7071",
        "-0.200 -1.430 -0.707",
    ):
        assert said in second
    assert "0.3062" in explained(capsys, *asked, "--question", "23")


def test_questions_are_listed_and_answered_with_the_samples_numbers(
    run: Path, tmp_path: Path, capsys
) -> None:
    listed = explained(capsys, "--questions", "--lang", "zh")
    assert [int(line.split()[0]) for line in listed.splitlines()] == list(range(1, 72))
    for number in range(1, 72):
        assert len(explained(capsys, str(run), "--question", str(number), "--lang", "en")) > 40
    asked = ["--question", "9", "--question", "12", "--lang", "zh"]
    explained(capsys, str(run), *asked, "--save-dialogue", str(tmp_path / "log"))
    (file,) = (tmp_path / "log").iterdir()
    assert re.fullmatch(r"telescope_\d{8}_\d{6}\.md", file.name)
    assert file.read_text("utf-8").count("### 问题") == 3  # the wish to save is the last round
    named = tmp_path / "codex_20261116_120000.md"
    for _ in range(2):
        explained(capsys, str(run), *asked, "--save-dialogue-as", str(named))
    assert len(Dialogue.read(named).rounds) == 6


@pytest.mark.parametrize(("lang", "said"), [("zh", "内置例子"), ("en", "The built-in example")])
def test_without_a_run_there_is_an_example_that_says_so(lang: str, said: str, capsys) -> None:
    credits_of = fill(RIGHT).columns["advantages"]
    kid = ["--question", "11", "--level", "kid"]
    for arguments, digits in (([], 4), (["--question", "12"], 4), (kid, 1)):
        out = explained(capsys, *arguments, "--lang", lang)
        assert said in out.splitlines()[0]
        assert any(num(round(a, digits)) in out for a in credits_of)
    assert json.loads(explained(capsys, "--json"))["sample"]["prompt"] == "请问1+1=2？"


def test_the_example_has_a_wrong_answer_as_its_second_sample(capsys) -> None:
    for index, sample in enumerate([RIGHT, WRONG]):
        printed = json.loads(explained(capsys, "--sample", str(index), "--json"))["sample"]
        assert (printed["response"], printed["score"]) == (sample.response, sample.score)


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_table_of_columns_has_each_of_them_once_under_its_view(
    lang: str, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = explained(capsys, "--columns", "--lang", lang)
    assert max(map(cell_len, out.splitlines())) <= 80
    views = out.split("\n\n")
    for view, anchor in zip(views, ("state", "action", "sequence", "row"), strict=True):
        names = [column.name for column in COLUMNS.values() if column.anchor == anchor]
        assert re.findall(r"^  (\w+)", view, re.M) == names


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_seven_metaphors_name_every_quantity(lang: str, capsys) -> None:
    assert list(metaphors()) == ["game", "sport", "exam", "weather", "chess", "climbing", "coins"]
    out = explained(capsys, "--metaphors", "--lang", lang)
    for symbol in "VδAλÂ":
        assert len(re.findall(rf"^  {symbol}  \S", out, re.M)) == 7


def test_a_run_is_drawn_as_a_flow(run: Path, capsys) -> None:
    out = explained(capsys, str(run), "--flow", "--token", "0", "--lang", "en")
    sample = ledger.samples(run, ledger.steps(run)[-1], [0])[0]
    assert f"advantages[i] = {num(sample.columns['advantages'][0])} " in out
    assert "generate_sequences" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--numbers", "x.toml"], "say one thing to explain"),
        (["{run}", "--step", "9"], "it has steps 1 to 2"),
        (["{run}", "--sample", "99"], "samples 0 to 7"),
        (["{run}", "--token", "99"], "this response has tokens 0 to"),
        (["{run}", "--question", "99"], "99"),
        (["{run}", "--save-dialogue", "x"], "say which with --question"),
        (["{run}", "--save-dialogue-as", "x.md"], "say which with --question"),
        (["nosuch"], "no run nosuch: give the folder of a run"),
        (["--step", "3"], "--step 3 belongs to a run"),
        (["--sample", "5"], "--sample 5: the built-in example has 2 responses, 0 to 1"),
        (["--json", "--question", "3"], "--question and --json are two different things"),
        (["--json", "--columns"], "--columns and --json are two different things"),
        (["--flow", "--question", "3"], "--question and --flow are two different things"),
        (["--prompt", "请问1+1=2？", "--model", "{run}/../nosuch"], "name a run or a model folder"),
        (["--response", "x"], "give --prompt too"),
        (["{run}", "--score", "1"], "give --prompt too"),
        (["--numbers", "nosuch.toml"], "nosuch.toml"),
        (["--numbers", "{run}/../two.json", "--sample", "2"], "two.json has 2 responses, 0 to 1"),
    ],
)
def test_what_cannot_be_explained_is_said_in_one_line(
    run: Path, arguments: list[str], message: str, capsys
) -> None:
    assert message in refusal(capsys, "explain", *(a.format(run=run) for a in arguments))


def test_values_of_right_and_wrong_answers_are_the_means_of_the_ledger(
    run: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("sys.argv", ["values.py", str(run), "--step", "2"])
    runpy.run_path(str(ROOT / "benchmarks" / "values.py"), run_name="__main__")
    rows = re.findall(r"^\| (?:right|wrong) \((\d+)\) \| (\S+)", capsys.readouterr().out, re.M)
    samples = ledger.samples(run, 2)
    length = max({len(s) for s in samples}, key=[len(s) for s in samples].count)
    first = [s.columns["values"][0] for s in samples if len(s) == length]
    assert sum(int(n) for n, _ in rows) == len(first)
    assert sum(int(n) * float(v) for n, v in rows) == pytest.approx(
        sum(first), abs=0.01 * len(first)
    )


def test_a_report_is_one_file_without_links_to_anywhere(run: Path, tmp_path: Path, capsys) -> None:
    main(["report", str(run), "-o", str(tmp_path / "r.html")])
    html = (tmp_path / "r.html").read_text("utf-8")
    assert not re.search(r"(src|href)\s*=\s*[\"']?https?:", html)
    assert "Content-Security-Policy" in html


def test_training_ends_by_writing_the_report(make_config, tmp_path: Path, capsys) -> None:
    from telescope.config import to_toml

    config = make_config(("steps", "1"))
    (tmp_path / "r.toml").write_text(to_toml(config), "utf-8")
    main(["train", str(tmp_path / "r.toml")])
    assert str(config.run_dir / "report.html") in capsys.readouterr().out
    assert (config.run_dir / "report.html").is_file()


def test_terminal_json_report_and_live_page_show_the_same_traces(
    run: Path, tmp_path: Path, capsys
) -> None:
    """Every surface shows formula, numbers, result and tick of the same trace objects."""
    main(["report", str(run), "-o", str(tmp_path / "r.html")])
    capsys.readouterr()
    html = (tmp_path / "r.html").read_text("utf-8")
    held = data_of_report(html)["answers"]
    step = ledger.steps(run)[-1]
    samples = f"api/runs/{run.name}/steps/{step}/samples"
    compared = 0
    for sample in ledger.samples(run, step):
        shown = held.get(f"{samples}/{sample.index}/tokens")
        if shown is None:  # a report takes eight samples of a step
            continue
        asked = [str(run), "--step", str(step), "--sample", str(sample.index)]
        printed = json.loads(explained(capsys, *asked, "--json"))
        for t in range(len(sample)):
            truth = [trace.to_json() for trace in traces(sample, t)]
            assert printed["traces"][t] == truth
            page = page_traces(Tracer(sample), t, {})
            assert shown[t] == page
            for found, same in zip(page, truth, strict=True):
                numbers = {"result", "recorded"}  # the page has seven digits
                assert {k: found[k] for k in same if k not in numbers} == {
                    k: same[k] for k in same if k not in numbers
                }
                assert found["result"] == pytest.approx(same["result"])
            terminal = without_spaces(explained(capsys, *asked, "--token", str(t), "--lang", "en"))
            for trace in truth:
                assert without_spaces(trace["formula"]) in terminal
                assert without_spaces(trace["substituted"]) in terminal
                compared += 1
    assert compared > 100


def without_spaces(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_flow_names_every_number_once_and_counts_from_i(lang: str, capsys) -> None:
    out = explained(capsys, "--flow", "--token", "4", "--lang", lang)
    names = re.findall(r"(\w+)\[i\]", out)
    assert len(names) == len(set(names))
    assert {"values", "vpreds", "policy_loss", "value_loss"} <= set(names)
    assert "i = 4 «2»" in out
    assert "[t]" not in out
