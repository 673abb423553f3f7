"""Writes the list of findings in docs/doctor.md and docs/zh/doctor.md, with a picture of each.

    python -m tools.doctor_docs          # after a change of words.toml, thresholds.py or the checks

Words and thresholds are the package's own. Examples and pictures are the small runs of
tests/doctor, in which each check fires; the grey curve is the run in which it does not.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from telescope.doctor.check import CHECKS, FAMILIES, Check
from telescope.doctor.curves import Curve, Curves
from telescope.doctor.examine import ledger_findings, with_places
from telescope.doctor.finding import Finding
from telescope.doctor.recorded import Recorded, RecordedStep
from telescope.doctor.words import Lang, name_of, rule_of
from tests.doctor import test_curve_checks, test_ledger_checks

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- findings -->", "<!-- end of findings -->"
PICTURES = ROOT / "docs" / "doctor"
WIDTH, HEIGHT, EDGE = 420, 120, 14
TITLES = {
    "laws": ("Numbers that break a law", "违反定律的数"),
    "sampler": ("Sampler", "采样器"),
    "data": ("Data and tools", "数据与工具"),
    "reward": ("Reward", "奖励"),
    "groups": ("Answers", "回答"),
    "length": ("Length", "长度"),
    "critic": ("Critic", "Critic"),
    "whitening": ("Whitening", "白化"),
    "learning_rate": ("Learning rate and gradients", "学习率与梯度"),
    "entropy": ("Entropy", "熵"),
    "kl": ("KL", "KL"),
    "outcome": ("What comes of it", "结果"),
}
LABELS = {
    "en": ("Rule", "Example", "Why", "Remedy", "Settings"),
    "zh": ("规则", "例子", "为什么", "怎么办", "设置"),
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    examples = {id: example(check) for id, check in CHECKS.items()}
    for id, (_, picture) in examples.items():
        (PICTURES / f"{id}.svg").write_text(picture, "utf-8")
    for lang, page in pages():
        text = page.read_text("utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        made = section({id: found for id, (found, _) in examples.items()}, lang)
        page.write_text(f"{before}{BEGIN}\n{made}{END}{after}", "utf-8")


def pages() -> list[tuple[Lang, Path]]:
    return [("en", ROOT / "docs" / "doctor.md"), ("zh", ROOT / "docs" / "zh" / "doctor.md")]


def section(examples: dict[str, Finding], lang: Lang) -> str:
    """Every finding by family: picture, rule, example, why, remedy."""
    folder = "doctor" if lang == "en" else "../doctor"
    rule, shown, why, remedy, settings = LABELS[lang]
    colon = ": " if lang == "en" else "："
    out = []
    for family in FAMILIES:
        out += [f"\n### {TITLES[family][lang == 'zh']}\n"]
        for check in (each for each in CHECKS.values() if each.family == family):
            found = examples[check.id]
            name = name_of(check.id, lang)
            keys = ", ".join(f"`{key}`" for key in check.settings)
            out += [
                f"\n#### `{check.id}`{colon}{name}\n",
                f"\n![{name}]({folder}/{check.id}.svg)\n\n",
                f"- **{rule}**{colon}{rule_of(check.id, lang)}\n",
                f"- **{shown}**{colon}{_one_line(found.said('what', lang))}\n",
                f"- **{why}**{colon}{found.said('why', lang)}\n",
                f"- **{remedy}**{colon}{found.said('remedy', lang)}\n",
            ]
            if keys:
                out += [f"- **{settings}**{colon}{keys}\n"]
    return "".join(out) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("{{ problem }}", "`{{ problem }}`")


def example(check: Check) -> tuple[Finding, str]:
    """A finding of the check in its test's run, and the picture of it."""
    if check.of_curves is not None:
        run = test_curve_checks.FIRES[check.id][0]
        found = test_curve_checks.seen(run, check.id)
        return found, curve_picture(check, run, test_curve_checks.HEALTHY[check.id], found)
    with tempfile.TemporaryDirectory() as folder:
        run, write = test_ledger_checks.FIRES[check.id]
        recorded = write(Path(folder))
        every = {each.id: each for each in ledger_findings(run, recorded)}
        found = with_places(every[check.id], recorded)
        return found, token_picture(recorded, found)


def curve_picture(check: Check, run: Curves, healthy: Curves, found: Finding) -> str:
    """The curve in which it fires (red, from `since` on) over a healthy one (grey)."""
    names = [name for name in check.charts if name in run]
    name = names[0] if names else "actor/grad_norm"
    curve = run.get(name)
    assert curve is not None
    other = healthy.get(name)
    drawn = [curve] + ([other] if other is not None else [])
    low = min(float(each.values.min()) for each in drawn)
    high = max(float(each.values.max()) for each in drawn)
    last = max(float(each.steps[-1]) for each in drawn)
    parts = []
    if other is not None:
        parts.append(line(other, low, high, last, "#999", 1.5))
    parts.append(line(curve, low, high, last, "#c0392b", 2.5))
    x = EDGE + (WIDTH - 2 * EDGE) * found.since / max(last, 1)
    parts.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="22" y2="{HEIGHT - 8}" stroke="#888" '
        'stroke-dasharray="3 3"/>'
    )
    return svg(
        [text(EDGE, 14, name), text(WIDTH - EDGE, 14, f"since {found.since}", "end"), *parts]
    )


def line(curve: Curve, low: float, high: float, last: float, colour: str, width: float) -> str:
    room = max(high - low, 1e-12)
    points = []
    for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
        x = EDGE + (WIDTH - 2 * EDGE) * step / max(last, 1)
        y = HEIGHT - 12 - (HEIGHT - 40) * (value - low) / room
        points.append(f"{x:.1f},{y:.1f}")
    joined = " ".join(points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def token_picture(recorded: Recorded, found: Finding) -> str:
    """Two responses as boxes: shaded where the mask is 1, red where the finding is."""
    step = recorded.near(found.since)
    flagged = {(place.sample, place.token) for place in found.places}
    rows = sorted(range(len(step)), key=lambda row: all(row != sample for sample, _ in flagged))[:2]
    parts = [text(EDGE, 14, f"step {step.step}")]
    for k, row in enumerate(rows):
        parts += boxes(step, row, flagged, 24 + 46 * k)
    return svg(parts)


def boxes(step: RecordedStep, row: int, flagged: set[tuple[int, int | None]], y: int) -> list[str]:
    pieces = [piece.decode("utf-8", "replace") for piece in step.rows("token_bytes")[row]][:12]
    mask = step.rows("response_mask")[row]
    whole = (row, None) in flagged
    out = [text(EDGE, y + 20, f"{row}")]
    for i, piece in enumerate(pieces):
        red = whole or (row, i) in flagged
        colour = "#c0392b" if red else "#888"
        fill = "#8884" if mask[i] else "none"
        x = EDGE + 20 + 31 * i
        out.append(
            f'<rect x="{x}" y="{y}" width="28" height="30" rx="4" fill="{fill}" stroke="{colour}" '
            f'stroke-width="{2.5 if red else 1}"/>'
        )
        out.append(text(x + 14, y + 20, piece, "middle"))
    return out


def text(x: float, y: float, said: str, anchor: str = "start") -> str:
    shown = escape(re.sub(r"[^\x20-\x7e]", "·", said))
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" fill="#888">{shown}</text>'


def svg(parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
    return f'{head} font-family="sans-serif">\n' + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    main()
