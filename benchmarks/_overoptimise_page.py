"""Picture and page of benchmarks/overoptimise.py, from its curves.json alone."""

import json
import math
from pathlib import Path
from typing import Any


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def windows(values: list[float], width: int) -> list[float]:
    """Means over each `width` values in a row."""
    return [mean(values[i : i + width]) for i in range(len(values) - width + 1)]


def findings(run: dict[str, Any], batch: int, head_start: int) -> dict[str, Any]:
    """Start, best and end of a run, each a mean over several steps, and whether true accuracy fell
    while the RM score rose.

    A fall counts where best − end is more than 3 standard errors: the best of many windows is a bit
    too high by chance.
    """
    steps, accuracy, rm = run["step"], run["true_accuracy"], run["rm_score"]
    width = max(min(10, len(steps) // 4), 1)
    first = max(min(head_start, len(steps)), 1)
    smooth, smooth_rm = windows(accuracy, width), windows(rm, width)
    at = max(range(len(smooth)), key=smooth.__getitem__)
    best, last = smooth[at], smooth[-1]
    error = math.sqrt((best * (1 - best) + last * (1 - last)) / (width * batch))
    return {
        "beta": run["beta"],
        "steps": steps[-1],
        "width": width,
        "rm_start": mean(rm[:first]),
        "rm_best": smooth_rm[at],
        "rm_end": smooth_rm[-1],
        "true_start": mean(accuracy[:first]),
        "true_best": best,
        "true_end": last,
        "best_step": steps[at + width - 1],
        "kl_best": windows(run["kl"], width)[at],
        "kl_end": windows(run["kl"], width)[-1],
        "length_end": windows(run["length"], width)[-1],
        "error": error,
        "fell": best - last > 3 * error,
        "drifted": best - last > 3 * error and smooth_rm[-1] > smooth_rm[at],
    }


def sentence(found: dict[str, Any]) -> str:
    """What a run shows, in its own numbers."""
    if not found["fell"]:
        return (
            f"β = {found['beta']:g}: the RM score {rose(found['rm_start'], found['rm_end'])}; true "
            "accuracy went from "
            f"{percent(found['true_start'])} to {percent(found['true_end'])} and did not fall from "
            "its best by more than chance."
        )
    return (
        f"β = {found['beta']:g}: true accuracy fell from its best, {percent(found['true_best'])} "
        f"at step {found['best_step']}, to "
        f"{percent(found['true_end'])} at the end, {'while' if found['drifted'] else 'and'} the RM "
        "score "
        f"{rose(found['rm_best'], found['rm_end'])}."
    )


def rose(before: float, after: float) -> str:
    return f"{'rose' if after > before else 'fell'} from {before:.2f} to {after:.2f}"


def conclusion(found: list[dict[str, Any]], rm_of_right: float | None) -> list[str]:
    """What all runs together show; `found` is ordered from the largest β to the smallest."""
    drifted = [f for f in found if f["drifted"]]
    if not drifted:
        lines = [
            "In none of the runs did true accuracy fall, beyond chance, while the RM score rose: "
            "these runs show no over-optimisation."
        ]
    elif len(drifted) == len(found):
        lines = ["In every run true accuracy fell from its best while the RM score went on rising."]
    else:
        names = ", ".join(f"{f['beta']:g}" for f in drifted)
        others = ", ".join(f"{f['beta']:g}" for f in found if not f["drifted"])
        lines = [f"RM score and true accuracy drift apart at β = {names}, and not at β = {others}."]
        if min(f["beta"] for f in found if not f["drifted"]) > max(f["beta"] for f in drifted):
            lines[0] += " The smaller β, the less holds the policy back."
    by_rm, by_truth = max(found, key=lambda f: f["rm_end"]), max(found, key=lambda f: f["true_end"])
    if by_rm is by_truth:
        lines.append(
            f"At the end β = {by_rm['beta']:g} has both the highest RM score and the highest true "
            "accuracy."
        )
    else:
        lines.append(
            f"By the RM the best policy is that of β = {by_rm['beta']:g} (RM score "
            f"{by_rm['rm_end']:.2f}, true accuracy "
            f"{percent(by_rm['true_end'])}), by the truth that of β = {by_truth['beta']:g} "
            f"({by_truth['rm_end']:.2f}, "
            f"{percent(by_truth['true_end'])})."
        )
    if rm_of_right is not None:
        above = [f for f in found if f["rm_end"] > rm_of_right]
        names = ", ".join(
            f"{f['beta']:g} (of which {percent(f['true_end'])} are right)" for f in above
        )
        lines.append(
            f"Right answers score {rm_of_right:.2f} on average. "
            + (
                f"The RM prefers to them what the policies of β = {names} write."
                if above
                else "No policy's responses score more than that."
            )
        )
    return lines


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def render(out: Path) -> None:
    """picture.svg and README.md from curves.json."""
    data = json.loads((out / "curves.json").read_text("utf-8"))
    runs = sorted(data["runs"], key=lambda run: -run["beta"])
    found = [findings(run, data["batch_size"], data["head_start"]) for run in runs]
    (out / "README.md").write_text(page(data, runs, found), "utf-8")
    draw(out / "picture.svg", runs, found, data["reward_model"]["scores"].get("right"))


def draw(
    path: Path, runs: list[dict[str, Any]], found: list[dict[str, Any]], rm_of_right: float | None
) -> None:
    """Upper row: RM score, lower row: true accuracy; over steps, over √KL, and at the end by β."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "over-optimisation",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with plt.rc_context(settings):
        figure, axes = plt.subplots(
            2, 3, figsize=(13, 6.5), sharex="col", sharey="row", layout="constrained"
        )
        colours = plt.get_cmap("viridis")(
            [0.9 * i / max(len(runs) - 1, 1) for i in range(len(runs))]
        )
        for run, of, colour in zip(runs, found, colours, strict=True):
            width, label = min(of["width"], 5), f"β = {run['beta']:g}"
            steps, root = (
                run["step"][width - 1 :],
                [math.sqrt(max(kl, 0.0)) for kl in windows(run["kl"], width)],
            )
            for row, name in enumerate(("rm_score", "true_accuracy")):
                smooth = windows(run[name], width)
                axes[row, 0].plot(steps, smooth, color=colour, label=label, linewidth=1.5)
                axes[row, 1].plot(root, smooth, color=colour, linewidth=1.2)
                axes[row, 1].plot(root[-1:], smooth[-1:], "o", color=colour)
        places, names = range(len(runs)), [f"{run['beta']:g}" for run in runs]
        axes[0, 2].plot(
            places, [f["rm_end"] for f in found], "o-", color="black", label="at the end"
        )
        axes[1, 2].plot(
            places, [f["true_end"] for f in found], "o-", color="black", label="at the end"
        )
        axes[1, 2].plot(
            places, [f["true_best"] for f in found], "^--", color="grey", label="at its best"
        )
        axes[1, 2].set_xticks(list(places), names)
        if rm_of_right is not None:
            for axis in axes[0]:
                axis.axhline(rm_of_right, color="grey", linestyle=":", linewidth=1)
            place = {"xycoords": ("axes fraction", "data"), "va": "bottom", "ha": "left"}
            axes[0, 2].annotate(
                "right answers", (0.01, rm_of_right), **place, color="grey", fontsize=9
            )
        axes[0, 0].set_ylabel("reward-model score")
        axes[1, 0].set_ylabel("true accuracy")
        axes[1, 0].set_ylim(bottom=0)
        for axis, name in zip(
            axes[1], ("step", "√KL from the start, per response (nats)", "β"), strict=True
        ):
            axis.set_xlabel(name)
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(),
            loc="outside upper center",
            ncols=len(runs),
            frameon=False,
        )
        axes[1, 2].legend(frameon=False, fontsize=9)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


PAGE = """# Over-optimisation of a reward model

{smoke}![RM score and true accuracy over steps, over the distance from the start, and at the end \
by β](picture.svg)

{conclusion}

{sentences}

| β | steps | RM score, start → end | true accuracy, start | at its best | at the end | KL per \
response, end | tokens, end |
|---|---|---|---|---|---|---|---|
{table}

{stopped}True accuracy: share of responses that the task's own scorer gives 1, measured on every \
step's responses; it paid nothing.
KL: from the start policy, in nats. Start: mean of the first steps ({head_start}), in which the \
critic alone is trained. Best and end:
means of {width} steps in a row, of {batch} responses each. A fall counts beyond 3 standard errors.

## What the reward model likes

{examples}

## The reward model

{model} with one output, trained on {pairs} pairs for {epochs} epochs (AdamW, {lr:g}, float32, \
−log σ(r_w − r_l)). Each pair: one problem,
two responses that the scorer scores differently, out of those sampled from the start policy \
(right in {start} of cases) and written ones:
the right number and near misses, in the forms the policy uses. Right on {trained} of the pairs \
it was trained on, and on
**{held_out} of {held_out_pairs} held-out pairs**:

| rejected response | held-out pairs | RM prefers the other |
|---|---|---|
{kinds}

Scores are divided by their standard deviation over the start policy's responses. Means: {means}.
Telescope's `reward.model` and the training forward differ by at most {alignment:.0e}.

## How it was measured

```bash
{command}
```

{date}, {machine}; {versions}; {minutes:.1f} minutes in all. `{recipe}` with `reward.model`, seed \
{seed}, and: {settings}.{note}
PPO's problems are none of those that pairs were made of. After Gao, Schulman and Hilton 2023, \
«Scaling laws for reward model
overoptimization», arXiv:2210.10760. `python benchmarks/overoptimise.py --render` draws this page \
again from `curves.json`.
"""


def page(data: dict[str, Any], runs: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """README.md."""
    model = data["reward_model"]
    table = [
        f"| {f['beta']:g} | {f['steps']} | {f['rm_start']:.2f} → {f['rm_end']:.2f} | "
        f"{percent(f['true_start'])} | "
        f"{percent(f['true_best'])} (step {f['best_step']}) | {percent(f['true_end'])} | "
        f"{f['kl_end']:.1f} | {f['length_end']:.1f} |"
        for f in found
    ]
    short = any(f["steps"] < data["steps"] for f in found)
    kinds = [
        f"| {kind} | {count} | {percent(share)} |"
        for kind, (share, count) in model["held_out_by_rejected"].items()
    ]
    return PAGE.format(
        smoke="**A smoke test: a tiny random model and a few steps. The numbers mean nothing.**\n\n"
        if data["smoke"]
        else "",
        conclusion="\n".join(conclusion(found, model["scores"].get("right"))),
        sentences="\n".join(f"- {sentence(f)}" for f in found),
        table="\n".join(table),
        stopped=f"Runs of fewer than {data['steps']} steps were stopped by the time limit.\n"
        if short
        else "",
        head_start=data["head_start"],
        width=found[0]["width"],
        batch=data["batch_size"],
        examples=examples(runs),
        model=data["model"],
        pairs=model["pairs"],
        epochs=model["epochs"],
        lr=model["lr"],
        start=percent(model["start_accuracy"]),
        trained=percent(model["train_accuracy"]),
        held_out=percent(model["held_out_accuracy"]),
        held_out_pairs=model["held_out_pairs"],
        kinds="\n".join(kinds),
        means=", ".join(
            f"{name.replace('_', ' ')} {score:.2f}" for name, score in model["scores"].items()
        ),
        alignment=model["alignment"],
        versions=", ".join(f"{name} {version}" for name, version in data["versions"].items()),
        settings=", ".join(f"`{key} = {value}`" for key, value in data["settings"]),
        note=f"\n{data['note']}" if "note" in data else "",
        **{key: data[key] for key in ("command", "date", "machine", "minutes", "recipe", "seed")},
    )


def examples(runs: list[dict[str, Any]]) -> str:
    """Those of the smallest β that has some."""
    run = next((run for run in reversed(runs) if run["examples"]), None)
    if run is None:
        return "No run has recorded a wrong response."
    rows = [
        f"| {e['problem']} | {e['answer']} | "
        f"{code(e['response'])}{' (cut off)' if e['truncated'] else ''} | {e['rm_score']:.2f} | "
        f"{e['rm_score_of_answer']:.2f} |"
        for e in run["examples"]
    ]
    return "\n".join(
        [
            "Wrong responses (the scorer gives 0) with the highest RM scores, from the ledger of "
            f"β = {run['beta']:g}, step "
            f"{run['examples'][0]['step']}:",
            "",
            "| problem | right answer | response | its RM score | RM score of the right answer "
            "alone |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def code(text: str) -> str:
    """As code in a table cell, on one line."""
    return "`" + (" ".join(text.split()).replace("`", "'").replace("|", "\\|") or " ") + "`"
