"""Numbers typed by hand: the worked examples from files, and one clear line for each mistake."""

import json
import math

import pytest

from telescope.explain.arithmetic import fill
from telescope.explain.number_names import COLUMN_NAMES
from telescope.explain.numbers import read_numbers
from telescope.explain.questions import answer
from telescope.explain.trace import compare, traces
from telescope.explain.whitening import whitening
from tests.algorithms.golden_cases import GOLDEN
from tests.explain.number_files import FORMATS, near, read_one

EXAMPLES = {
    example["id"]: example
    for example in json.loads((GOLDEN / "worked_examples.json").read_text("utf-8"))
}


def of_kind(*kinds: str):
    return pytest.mark.parametrize(
        "example", [pytest.param(e, id=name) for name, e in EXAMPLES.items() if e["kind"] in kinds]
    )


@of_kind("gae")
def test_every_gae_example_comes_out(example, write):
    sample, want = read_one(write(example)), example["expected"]
    full = fill(sample)
    for name in ("deltas", "advantages", "returns", "whitened"):
        assert full.columns[name] == near(want[name])
    assert full.whiten_mean == near(want["whiten_mean"])
    assert full.whiten_std == near((want["whiten_var_bessel"] + 1e-8) ** 0.5)
    for t in range(len(sample)):
        others = {trace.name: trace.result for trace in compare(sample, t)}
        assert (others["td0"], others["monte_carlo"]) == near(
            (want["td0_advantages"][t], want["mc_advantages"][t])
        )
        found = {trace.name: trace for trace in traces(sample, t)}
        assert found["advantage_sum"].result == near(want["advantages"][t])
        assert all(trace.ok is not False for trace in found.values())
        if "kl" in example:
            assert found["reward"].ok is True  # typed in besides the score and the kl: checked


@of_kind("kl")
def test_the_kl_example_comes_out(example, write):
    for kind, key in {"k1": "kl", "k2": "kl_k2", "k3": "kl_k3_low_var", "abs": "kl_abs"}.items():
        full = fill(read_one(write({**example, "kl_kind": kind})))
        assert full.columns["kl"] == near(example["expected"][key])
    assert fill(read_one(write(example))).columns["token_level_rewards"] == near(
        example["expected"]["token_level_rewards"]
    )


@of_kind("surrogate")
def test_the_surrogate_example_comes_out(example, write):
    want = example["expected"]
    raw, whitened = read_one(write({**example, "whiten": False})), fill(read_one(write(example)))
    found = [{trace.name: trace.result for trace in traces(raw, t)} for t in range(len(raw))]
    assert [x["ratio"] for x in found] == near(want["ratios"])
    assert [x["surrogate"] for x in found] == near(want["terms"])
    assert [x["clip"] for x in found] == near(want["terms"])
    assert sum(fill(raw).actor_updates[0].loss) / len(raw) == near(want["loss_is_minus_objective"])
    assert whitened.columns["whitened"] == near(want["advantages_whitened"])
    swapped = fill(read_one(write({**example, "whiten": False, "new": example["ref_log_prob"]})))
    assert swapped.actor_updates[0].ratio == near(want["trap_ref_used_as_new_policy"]["ratios"])


@of_kind("value_loss")
def test_every_value_loss_example_comes_out(example, write):
    sample, want = read_one(write(example)), example["expected"]
    update = fill(sample).critic_updates[0]
    assert sum(update.loss) / len(sample) == near(want["vf_loss"])
    assert sum(update.clipped) / len(sample) == near(want["vf_clipfrac"])
    assert [traces(sample, t)[-1].result for t in range(len(sample))] == near(update.loss)


@of_kind("whiten")
def test_whitening_one_response_takes_its_own_mean(example, write):
    if example["id"] != "whiten-global-vs-row":  # a batch of two
        assert fill(read_one(write(example))).columns["whitened"] == near(
            example["expected"]["whitened"]
        )


def test_a_batch_is_whitened_over_all_its_tokens_and_row_by_row_only_for_contrast(tmp_path):
    example = EXAMPLES["whiten-global-vs-row"]
    want, path = example["expected"], tmp_path / "batch.json"
    path.write_text(json.dumps(example), "utf-8")
    batch = read_numbers(path)
    assert [(x.index, x.count, len(x)) for x in batch] == [(0, 2, 4), (1, 2, 4)]
    for sample, together, by_row in zip(
        batch, want["whitened_global"], want["whitened_per_row_WRONG"], strict=True
    ):
        assert fill(sample).columns["whitened"] == near(together)
        for t in range(sum(sample.mask)):
            mean, variance, std, row = whitening(batch, sample, t)
            assert (mean.result, variance.result) == near((want["mean"], want["var_bessel"]))
            assert (std.result, row.result) == near((sample.whiten_std, by_row[t]))
    assert [trace.substituted for trace in whitening(batch, batch[1], 0)] == [
        "1.531/5", "0.5014/4", "√(0.1254 + 1e-8)", "(0.1 − (−0.05))/0.2121",
    ]  # fmt: skip


TOGETHER = """\
lam = 1.0
[[responses]]
tokens = ["a", "b"]
values = [0.2, 0.4]
score = 1.0
[[responses]]
tokens = ["c"]
values = [0.4]
score = 0.0
"""

AS_JSON = '[{"values": [0.2, 0.4], "score": 1, "lam": 1}, {"lam": 1, "values": [0.4], "score": 0}]'

AS_CSV = "response,values,score,lam\nx,0.2,,1\nx,0.4,1,\ny,0.4,0,\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tables.toml", TOGETHER),
        ("rows.toml", "values = [[0.2, 0.4], [0.4]]\nscore = [1.0, 0.0]\nlam = 1.0\n"),
        (
            "padded.toml",
            "values = [[0.2, 0.4], [0.4, 9]]\nscore = [1.0, 0.0]\nmask = [[1, 1], [1, 0]]\nlam = 1.0\n",
        ),
        ("list.json", AS_JSON),
        ("shared.json", f'{{"responses": {AS_JSON}, "gamma": 1.0}}'),
        ("column.csv", AS_CSV),
    ],
)
def test_every_way_to_give_a_batch_gives_the_same(name, text, tmp_path):
    """At λ = 1: A = [0.8, 0.6] and [−0.4], so μ = 1/3, and var = ((7/15)² + (4/15)² + (11/15)²)/2 = 31/75."""
    (tmp_path / name).write_text(text, "utf-8")
    first, second = map(fill, read_numbers(tmp_path / name))
    assert first.columns["advantages"] == near([0.8, 0.6])
    assert second.columns["advantages"][0] == near(-0.4)
    for x in (first, second):
        assert (x.whiten_mean, x.whiten_std**2) == near((1 / 3, 0.4133333))
    assert second.columns["whitened"][0] == near((-0.4 - 1 / 3) / 0.4133333**0.5)


def test_what_was_given_for_a_batch_stays(tmp_path):
    path = tmp_path / "x.json"
    for more, mean in (({"mean": 0.25, "std": 2.0}, 0.25), ({"whiten": False}, None)):
        path.write_text(json.dumps({"advantages": [[1.0], [2.0]], **more}))
        batch = read_numbers(path)
        assert [x.whiten_mean for x in batch] == [mean, mean]
        assert whitening(batch, batch[0], 0) == []  # of another batch, or none
    path.write_text('{"values": [[0.1], [0.2]]}')
    assert [x.whiten_mean for x in read_numbers(path)] == [None, None]  # no advantages to whiten


def test_the_value_after_the_last_token_is_not_read(write):
    given, want = (
        EXAMPLES["values-mask-off-by-one"]["input"],
        EXAMPLES["values-mask-off-by-one"]["expected"]["response_mask_as_fixed"],
    )
    data = {
        "values": given["slice"],
        "mask": [1, 1, 1, 0],
        "rewards": given["token_level_rewards"],
        "gamma": 1.0,
        "lam": 0.95,
    }
    full = fill(read_one(write(data)))
    for name in ("deltas", "advantages", "returns"):
        assert full.columns[name] == near(want[name])


def test_a_single_score_sits_on_the_last_token_the_policy_wrote(tmp_path):
    (tmp_path / "x.toml").write_text('tokens = ["a", "b", "tool"]\nmask = [1, 1, 0]\nscore = 1.0\n')
    (tmp_path / "x.csv").write_text(
        "tokens,mask,score\na,1,\nb,1,1.0\ntool,0,\n"
    )  # in a table it stands where it was paid
    for name in ("x.toml", "x.csv"):
        sample = read_one(tmp_path / name)
        assert fill(sample).columns["token_level_rewards"] == [0.0, 1.0, 0.0]
        assert sample.score == 1.0


def test_other_names_and_the_batch_statistics_are_understood(write):
    data = {
        "V": [0.5, 0.5],
        "r": [0.0, 1.0],
        "γ": 0.5,
        "λ": 1.0,
        "mu": 0.1,
        "sigma": 2.0,
        "bootstrap": 0.4,
        "eps": 0.1,
        "prompt": "1+1?",
    }
    sample = read_one(write(data))
    full = fill(sample)
    assert full.columns["deltas"] == near([-0.25, 0.7])
    assert full.columns["whitened"] == near([(0.1 - 0.1) / 2, (0.7 - 0.1) / 2])
    assert (sample.truncated, sample.prompt) == (True, "1+1?")
    actor = sample.settings.actor
    assert (actor.clip_low, actor.clip_high) == (0.1, 0.1)


def test_a_number_may_begin_with_its_point(tmp_path):
    (tmp_path / "x.toml").write_text(
        "tokens = ['.5', \"a.7 .8\"] # not .9\nvalues = [.3, -.4]\nrewards = [0.25,.75]\nlam=.5\n"
    )
    (tmp_path / "x.json").write_text(
        '{"tokens": [".5", "a.7 .8"], "values": [.3, -.4], "rewards": [0.25, .75], "lam": .5}'
    )
    for name in ("x.toml", "x.json"):
        sample = read_one(tmp_path / name)
        assert sample.columns == {"values": [0.3, -0.4], "token_level_rewards": [0.25, 0.75]}
        assert [piece.decode() for piece in sample.token_bytes] == [".5", "a.7 .8"]
        assert sample.settings.credit.lam == 0.5


def test_the_correction_for_the_sampler_may_be_chosen(write):
    data = {
        "values": [0.1, 0.2],
        "score": 1.0,
        "old": [-0.1, -2.0],
        "rollout_log_probs": [-0.2, -0.1],
    }
    weights = {
        (("importance", "token"),): [0.1, -1.9],
        (("importance", "sequence"),): [-1.8, -1.8],
        (("reject", "token"),): [0.0, None],
        (("reject", "sequence"),): [None, None],
    }
    for chosen, logs in weights.items():
        sample = read_one(write({**data, **dict(chosen)}))
        found = [next(x for x in traces(sample, t) if x.name == "weight") for t in range(2)]
        assert [x.result for x in found] == near(
            [0.0 if log is None else math.exp(log) for log in logs]
        )
        assert [x.state == "rejected" for x in found] == [log is None for log in logs]


@pytest.mark.parametrize(
    ("form", "none"), [("json", None), ("json", "none"), ("toml", "none"), ("csv", "none")]
)
def test_a_setting_that_may_be_none_can_be_given_so(form, none, tmp_path):
    names = ("clip_value", "dual_clip", "huber_delta", "lam_alpha", "lam_critic")
    path = tmp_path / f"x.{form}"
    path.write_text(FORMATS[form]({"values": [0.1]} | dict.fromkeys(names, none)), "utf-8")
    settings = read_one(path).settings.by_name()
    assert [settings.get(name) for name in names] == [None] * 5


def test_the_largest_and_smallest_numbers_stay_finite(write):
    big = {
        "values": [1e30, -1e30],
        "score": 1e30,
        "old": [-1e30, -0.1],
        "ref": [-0.1, -1e30],
        "beta": 1e30,
        "mean": -1e30,
        "std": 1e-30,
    }
    for more in (
        {},
        {"kl_kind": "k2", "lam_alpha": 1e-30},
        {"bootstrap": -1e30, "huber_delta": 1e-30, "estimator": "monte_carlo"},
    ):
        sample = read_one(write({**big, **more}))
        assert all(
            math.isfinite(trace.result)
            for t in range(2)
            for trace in [*traces(sample, t), *compare(sample, t)]
        )


def test_each_name_of_the_worked_examples_is_known():
    known = {
        name
        for example in EXAMPLES.values()
        if example["kind"] in ("gae", "kl", "surrogate", "value_loss")
        for name in example
    }
    assert {
        "token_level_rewards",
        "values",
        "old_log_probs",
        "ref_log_prob",
        "vpreds",
        "advantages",
    } <= known & COLUMN_NAMES.keys()


def test_whitened_advantages_alone_are_enough_for_the_policys_terms(write):
    sample = read_one(write({"whitened": [1.0, -1.0], "old": [-0.1, -0.2], "new": [0.0, -0.2]}))
    found = {trace.name: trace for trace in traces(sample, 0)}
    assert set(found) == {"whitened", "ratio", "surrogate", "clip"}
    assert found["clip"].result == pytest.approx(min(math.exp(0.1), 1.2))
    assert "advantages" not in fill(sample).columns


@pytest.mark.parametrize(
    ("given", "raw"),
    [
        ({"mean": 0.5, "std": 2.0}, [2.5, -1.5]),
        ({"whiten": False}, [1.0, -1.0]),
        ({"returns": [1.0, 0.4], "values": [0.25, 0.5]}, [0.75, -0.1]),
    ],
)
def test_raw_advantages_follow_from_whitened_ones_or_from_returns(given, raw, write):
    sample = read_one(write({"whitened": [1.0, -1.0], **given}))
    assert fill(sample).columns["advantages"] == near(raw)
    assert fill(sample).columns["whitened"] == [1.0, -1.0]


def test_the_critics_numbers_alone_are_enough_for_its_loss(write):
    """v, R and V typed alone; with a critic that has its own λ, R − V is not the advantage."""
    numbers = {"v": [0.8, 0.5], "R": [0.95, 0.5], "V": [0.7, 0.5], "clip_value": 0.2}
    sample = read_one(write(numbers))
    (update,) = fill(sample).critic_updates
    assert update.values == [0.8, 0.5]
    assert update.loss == near([0.01125, 0.0])
    assert fill(sample).columns["advantages"] == near([0.25, 0.0])
    own_lam = read_one(write(numbers | {"lam_critic": 1.0}))
    assert "advantages" not in fill(own_lam).columns


@pytest.mark.parametrize(
    ("number", "data", "said"),
    [
        (7, {"whitened": [1.2, -0.4, -0.8], "old": [-0.1, -0.2, -0.3]}, "1.2"),
        (4, {"v": [0.8, 0.5], "R": [0.95, 0.5], "V": [0.7, 0.5]}, "0.01125"),
    ],
)
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_question_is_answered_with_the_few_numbers_that_it_needs(number, data, said, lang, write):
    """Not with the built-in example."""
    text = answer(number, read_one(write(data)), lang).text()
    assert said in text
    assert "built-in example" not in text
    assert "内置例子" not in text
