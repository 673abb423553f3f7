"""TeX: every formula translates, the numbers stay what they are, and words, code and tokens are left alone."""

import functools
import html
import re
from dataclasses import replace

import pytest

from telescope.algorithms import POLICY_LOSSES
from telescope.batch import COLUMNS
from telescope.commands import main
from telescope.explain.markdown import page
from telescope.explain.questions import answer, titles
from telescope.explain.sample import CriticUpdate, Sample
from telescope.explain.terminal import render
from telescope.explain.tex import prose, safe, tex
from telescope.explain.trace import compare, traces
from telescope.explain.whitening import whiten_together, whitening
from tests.explain.samples import demo, nearly_equal, trained, with_tool

LANGS = pytest.mark.parametrize("lang", ["zh", "en"])
LEVELS = pytest.mark.parametrize("level", ["expert", "kid"])
PAGES = [
    ["--all"],
    *(["--token", str(t)] for t in range(6)),
    *(["--question", str(n)] for n in range(1, 24)),
]
PAGES += [["--columns"], ["--metaphors"], ["--questions"], ["--flow"]]


@pytest.mark.parametrize(
    ("formula", "want"),
    [
        ("δ₀ = r₀ + γ·V₁ − V₀", r"\delta_{0} = r_{0} + \gamma\cdot V_{1} - V_{0}"),
        ("δ[i] = r[i] + γ·V_end", r"\delta_{i} = r_{i} + \gamma\cdot V_{\mathrm{end}}"),
        ("A₁₂ = δ₁₂ + 0.95²·δ₁₄ + … + γλ·A₁₃", r"A_{12} = \delta_{12} + 0.95^{2}\cdot\delta_{14} + \ldots + \gamma\lambda\cdot A_{13}"),
        ("A₀[TD(0)] = δ₀", r"A_{0}[\text{TD}(0)] = \delta_{0}"),
        ("V(s_{t+1}) − V(s_t)", r"V(s_{t+1}) - V(s_{t})"),
        ("Â₀ = (A₀ − μ)/σ", r"\hat{A}_{0} = (A_{0} - \mu)/\sigma"),
        ("ρ₀ = exp(log π₀ − log π_old₀)", r"\rho_{0} = \exp(\log \pi_{0} - \log \pi_{\mathrm{old},0})"),
        ("min(ρ·Â, clip(ρ, 0.8, 1.2)·Â)", r"\min(\rho\cdot\hat{A}, \mathrm{clip}(\rho, 0.8, 1.2)\cdot\hat{A})"),
        ("r[i] = score[i] − β·kl[i]", r"r_{i} = \mathrm{score}_{i} - \beta\cdot\mathrm{kl}_{i}"),
        ("½·max((v₀ − R₀)², V₀ ± 0.2)", r"\frac{1}{2}\cdot\max((v_{0} - R_{0})^{2}, V_{0} \pm 0.2)"),
        ("min(10, e^(−d) + d − 1), d = |log π|", r"\min(10, e^{-d} + d - 1), d = |\log \pi|"),
        ("σ = √(var + 1e-8)", r"\sigma = \sqrt{\mathrm{var} + 1 \times 10^{-8}}"),
        ("(1−λ)Σ_{n<N} λⁿ⁻¹A⁽ⁿ⁾", r"(1-\lambda)\sum_{n<N} \lambda^{n-1}A^{(n)}"),
        ("(0.9 − 1)/1e−06 + 3e−05/2", r"(0.9 - 1)/(1 \times 10^{-6}) + 3 \times 10^{-5}/2"),
        ("−6.828e−06 + 1·(−0.5)", r"-6.828 \times 10^{-6} + 1\cdot(-0.5)"),
        ("J₀[clip_cov] = 0: chosen by its covariance", r"J_{0}[\mathrm{clip\_cov}] = 0: \text{ chosen by its covariance}"),
    ],
)  # fmt: skip
def test_the_notation_of_the_terminal_translates(formula, want):
    assert tex(formula) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            "A return is a sample of Q(s,a), λ-returns too",
            "A return is a sample of $Q(s,a)$, $\\lambda$-returns too",
        ),
        (
            "`gae` 倒推A[0] = δ[0] + γλ·A[i⁺] = 0.6211；",
            "`gae` 倒推 $A_{0} = \\delta_{0} + \\gamma\\lambda\\cdot A_{i^{+}} = 0.6211$；",
        ),
        ("values[0] = 0.2 与 old_log_probs (1, 6)", "`values[0]` = 0.2 与 `old_log_probs` (1, 6)"),
        ("only −V[0] remains (A<0), 4 of 5", "only $-V_{0}$ remains $(A<0)$, 4 of 5"),
        ("token 0 «1+1=2 δ₀ $x$ `y`»: 3/8", "token 0 «1+1=2 δ₀ &#36;x&#36; &#96;y&#96;»: 3/8"),
        ("1 = a token that exists; 0 = padding", "1 = a token that exists; 0 = padding"),
        ("功劳 + 猜测 = 0.62 + 0.2 = 0.82。", "功劳 + 猜测 = $0.62 + 0.2 = 0.82$。"),
    ],
)
def test_in_a_sentence_only_formulas_are_translated(text, want):
    assert prose(text) == want


@functools.cache
def formulas() -> set[str]:
    """Formula and numbers of every trace, of every estimator, loss, KL and correction; columns; the formulas within sentences."""
    samples: list[Sample] = [demo(), with_tool()]
    for estimator in ("gae", "monte_carlo", "td0"):
        samples += trained(1, estimator=estimator)
    base = trained(2)[0]
    spans = {"attention": [0.5] * len(base), "rollout_log_probs": base.columns["old_log_probs"]}
    base = replace(base, columns={**base.columns, **spans})
    compared = replace(base, columns={**base.columns, "baselines": [0.1] * len(base)}, scale=0.5)
    logs = [[-1.0 - k / 10 for k in range(11)] for _ in range(len(base))]
    bins = CriticUpdate(0, 0, base.columns["values"], [], [], logs, [20] * len(base))
    settings = [
        {"kl_kind": kind, "kl_loss_coef": 0.1, "kl_loss_kind": kind}
        for kind in ("k1", "abs", "k2", "k3")
    ]
    settings += [
        {"estimator": name}
        for name in ("uniform", "last_token", "attention", "gdpo", "reinforce++")
    ]
    settings += [{"loss": name} for name in POLICY_LOSSES] + [
        {"value_loss": "huber", "huber_delta": 0.1},
        {"clip_value": None},
        {"lam_critic": 1.0},
    ]
    settings += [{"importance": name} for name in ("token", "sequence")] + [
        {"reject": "token"},
        {"reject": "token", "reject_low": 1.5},
    ]
    samples += [replace(base, settings=base.settings.change(**changed)) for changed in settings]
    samples += [
        replace(compared, settings=base.settings.change(estimator=name))
        for name in ("grpo", "remax")
    ]
    hl_gauss = base.settings.change(value_loss="hl_gauss", sigma=0.75)
    samples.append(replace(base, settings=hl_gauss, critic_updates=[bins]))
    samples.append(
        replace(base, actor_updates=[replace(base.actor_updates[0], selected=[True] * len(base))])
    )
    samples[-1] = replace(samples[-1], settings=base.settings.change(loss="kl_cov"))
    found = [
        trace
        for sample in samples
        for t in range(len(sample))
        for trace in [*traces(sample, t), *compare(sample, t)]
    ]
    batch = whiten_together([replace(demo(), whiten_mean=None, whiten_std=None) for _ in range(2)])
    found += whitening(batch, batch[0], 0)
    names = {trace.name for trace in found}
    assert {
        "kl_loss",
        "weight",
        "objective",
        "value_loss",
        "row",
        "n_step",
        "surrogate",
        "batch_std",
    } <= names
    out = {tex(text) for trace in found for text in (trace.formula, trace.substituted)}
    out |= {tex(column.formula) for column in COLUMNS.values() if column.formula}
    said = [
        text
        for lang in ("zh", "en")
        for key, title in titles(lang)
        for text in (prose(title), answer(key, demo(), lang).markdown(prose))
    ]
    return out | {inline for text in said for inline in re.findall(r"\$([^$]+)\$", text)}


def test_every_formula_is_ascii_and_balanced():
    found = formulas()
    assert len(found) > 1000
    for text in found:
        assert text.isascii(), text
        assert not re.search(r"[$#&]|\\\W(?<!\\_)(?<!\\%)", text), text
        bare = re.sub(r"\\text\{[^{}]*\}|\\mathrm\{[^{}]*\}|\\[a-z]+", "", text)
        assert not re.search(r"[A-Za-z]{2,}", bare), (
            text
        )  # a word is set as one, not as a product of letters
        depth = 0
        for character in text:
            depth += (character == "{") - (character == "}")
            assert depth >= 0, text
        assert depth == 0, text


def test_a_tex_renderer_takes_every_formula():
    mathtext = pytest.importorskip("matplotlib.mathtext")
    parser = mathtext.MathTextParser("path")
    for text in {
        re.sub(r"\d*\.?\d+", "1", text) for text in formulas()
    }:  # whatever the numbers: it takes its time
        parser.parse(f"${text}$")


def numbers(text: str) -> list[float]:
    """Every number of a text in its order, indices and exponents included, however they are set."""
    text = re.sub(r" \\times 10\^\{(-?\d+)\}", r"e\1", html.unescape(text)).replace(
        r"\frac{1}{2}", "½"
    )
    text = re.sub(
        r"[⁰¹²³⁴-⁹]+",
        lambda found: " " + found[0].translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")),
        text,
    )
    text = text.translate(str.maketrans("₀₁₂₃₄₅₆₇₈₉−", "0123456789-"))
    return [float(x) for x in re.findall(r"\d*\.?\d+(?:e-?\d+)?", text)]


@LANGS
@LEVELS
def test_every_page_of_the_worked_example_has_the_same_numbers_in_tex(
    lang, level, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    formulas_seen = 0
    for asked in PAGES:
        plain, made = (
            explained(capsys, *asked, "--lang", lang, "--level", level, *more)
            for more in ([], ["--tex"])
        )
        assert numbers(made) == numbers(plain), asked
        assert "$$" not in plain
        for formula in re.findall(r"\$\$?([^$]+)\$\$?", made):
            assert formula.isascii(), formula
            formulas_seen += 1
    assert formulas_seen > (100 if level == "expert" else 10)


@LANGS
@LEVELS
def test_a_recorded_response_has_the_same_numbers_in_tex(lang, level):
    for sample in (
        demo(),
        with_tool(),
        nearly_equal(),
        nearly_equal(9, estimator="grpo"),
        *trained(4),
    ):
        for t in range(len(sample)):
            said = {"token": t, "lang": lang, "level": level, "width": 100}
            assert numbers(page(sample, **said)) == numbers(render(sample, color=False, **said))


def explained(capsys, *arguments: str) -> str:
    main(["explain", *arguments])
    return capsys.readouterr().out


def test_the_page_of_the_worked_example(capsys):
    made = explained(capsys, "--tex", "--lang", "zh", "--token", "0")
    assert "**提示** 请问1+1=2？\n\n**回答** 是的，等于2！" in made
    assert (
        "$$\\delta_{0} = r_{0} + \\gamma\\cdot V_{1} - V_{0} = -0.01 + 1\\cdot0.62 - 0.5 = 0.11$$"
        in made
    )
    assert made.count("```") == 8  # the fence posts and three tables stay drawings


def test_a_dialogue_is_saved_with_its_formulas_in_tex(tmp_path, capsys):
    explained(capsys, "--question", "12", "--lang", "zh", "--tex", "--save-dialogue", str(tmp_path))
    (log,) = tmp_path.iterdir()
    text = log.read_text("utf-8")
    assert "用户：为什么不直接令 $A = \\delta$？  \n" in text
    assert "$\\delta = 0.11$" in text


def test_a_recorded_number_keeps_its_tick_and_a_tokens_text_is_not_markdown(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text(
        '{"tokens": ["<b>*x*", "$y$"], "rewards": [0, 1], "values": [0.3, 0.6], "deltas": [0.3, 0.4], "prompt": "[a](b) `c`"}'
    )
    made = explained(capsys, "--numbers", str(path), "--tex", "--lang", "en", "--token", "0")
    assert "\n\n✓ recorded 0.3\n\n" in made
    outside = re.sub(r"```text.*?```", "", made, flags=re.S)
    assert "<b>" not in outside
    assert "[a](b)" not in outside
    assert safe("a_b*") == "a&#95;b&#42;"
