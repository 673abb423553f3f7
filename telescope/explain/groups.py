"""The responses to one prompt, for estimators that compare them instead of asking a critic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from telescope.algorithms.definitions.base import Actions, Comparison
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import actions_of, fill
from telescope.explain.checked import Trace, close, compared
from telescope.explain.sample import Sample
from telescope.explain.text import about
from telescope.explain.words import Lang, ui


@dataclass(frozen=True)
class Group:
    """The recorded responses to one prompt, and the one of them that is explained."""

    members: list[Sample]
    index: int
    """Position of the explained response among the members."""

    @property
    def sample(self) -> Sample:
        return self.members[self.index]

    @property
    def outcomes(self) -> list[float]:
        """o of every member: its score less the cost of KL."""
        return [_actions(member).outcome for member in self.members]

    def is_whole(self) -> bool:
        """Whether these members give the recorded baseline, unless that cannot be told.

        If they do not, the ledger has left some out.
        """
        found = _compare(self.members)
        if found is None:
            return True  # it cannot be told
        baselines = found[self.index].baselines
        if not baselines:
            return True
        recorded = actions_of(self.sample)
        return "baselines" in recorded and close(
            baselines[0], recorded["baselines"][0], self.outcomes
        )

    def told(self, lang: Lang) -> str:
        """For a child: how many answers the question got, and what they earned."""
        outcomes = self.outcomes
        average = sum(outcomes) / len(outcomes)
        almost = ui("almost", lang, "kid")
        numbers = (about(average, almost), about(outcomes[self.index], almost))
        return ui("group_told", lang, "kid", len(outcomes), *numbers)

    def traces(self, t: int) -> list[Trace]:
        """Where the baseline and the scale come from, compared with those of token t."""
        sample = self.sample
        definition = sample.settings.estimator_definition
        if definition.baseline_terms is None or not sample.mask[t] or not self.is_whole():
            return []
        actions = [_actions(member) for member in self.members]
        baselines = sample.columns.get("baselines")
        recorded = {
            "baseline": None if baselines is None else baselines[t],
            "scale": sample.scale,
        }
        made = []
        for term in definition.baseline_terms(actions, self.index, sample.settings.credit):
            trace = compared(term, recorded.get(term.name), definition.texts)
            is_computed_here = not sample.run
            made.append(replace(trace, recorded=None, ok=None) if is_computed_here else trace)
        return made


def group_of(batch: Sequence[Sample], sample: Sample) -> Group | None:
    """The responses of the batch to the sample's prompt; None if they are not compared.

    Of another trainer's run the rewards may not be known: then there is nothing to compare.
    """
    if not sample.settings.estimator_definition.needs.groups:
        return None
    members = [other for other in batch if other.prompt_index == sample.prompt_index]
    places = [member.index for member in members]
    if len(members) < 2 or sample.index not in places:
        return None
    if any("score" in missing_for_comparing(member) for member in members):
        return None
    return Group(members, places.index(sample.index))


def compare_groups(batch: Sequence[Sample]) -> list[Sample]:
    """The responses with the baselines, scales or advantages that comparing them gives."""
    made = list(batch)
    groups: dict[int, list[int]] = {}
    for position, sample in enumerate(batch):
        groups.setdefault(sample.prompt_index, []).append(position)
    for positions in groups.values():
        found = _compare([batch[position] for position in positions])
        for position, comparison in zip(positions, found or (), strict=False):
            made[position] = _with(batch[position], comparison)
    return made


def _compare(members: Sequence[Sample]) -> list[Comparison] | None:
    """What comparing the members says about each; None if they cannot be compared."""
    settings = members[0].settings
    compare = settings.estimator_definition.compare
    if compare is None or any(missing_for_comparing(member) for member in members):
        return None
    return compare([_actions(member) for member in members], settings.credit)


def missing_for_comparing(sample: Sample) -> list[str]:
    """What the estimator needs of a response and this one lacks, by the names of a typed file."""
    needs = sample.settings.estimator_definition.needs
    columns = fill(sample).columns
    found = {
        "score": "token_level_rewards" in columns or needs.score_parts,
        "greedy_score": not needs.greedy_baseline or sample.greedy_score is not None,
        "old_log_probs": not needs.sum_pi_squared or "old_log_probs" in columns,
        "sum_pi_squared": not needs.sum_pi_squared or "sum_pi_squared" in columns,
        "attention": not needs.attention or "attention" in columns,
        "parts": not needs.score_parts or bool(sample.parts),
        "part_weights": not needs.score_parts or sample.parts.keys() == sample.part_weights.keys(),
    }
    return [name for name, is_there in found.items() if not is_there]


def _actions(sample: Sample) -> Actions:
    """The sample with its rewards, as `compare` wants it."""
    return actions_of(fill(sample))


def _with(sample: Sample, found: Comparison) -> Sample:
    """The sample with what comparing it gave; given columns stay as given."""
    columns = dict(sample.columns)
    for name, numbers in (("baselines", found.baselines), ("advantages", found.advantages)):
        if numbers is not None and name not in columns:
            columns[name] = sample.spread(numbers)
    return replace(sample, columns=columns, scale=found.scale)


def check_needs(batch: Sequence[Sample]) -> None:
    """Raises what typed responses lack for their estimator. Given advantages need nothing."""
    definition = batch[0].settings.estimator_definition
    is_given = any({"advantages", "whitened"} & sample.columns.keys() for sample in batch)
    if definition.needs.critic or is_given:
        return
    names = f"estimator = {definition.name!r}"
    for i, sample in enumerate(batch):
        missing = missing_for_comparing(sample)
        if missing:
            said = ", ".join(missing).replace("score", "score (or rewards)", missing[0] == "score")
            raise TelescopeError(f"{names} needs {said}: response {i} has none")
    counts = Counter(sample.prompt_index for sample in batch)
    if definition.needs.groups and min(counts.values()) < 2:
        raise TelescopeError(
            f"{names} compares the responses to one prompt: give at least two [[responses]] with "
            "the same group, each with its score, e.g. group = 0 (without group, all are one group)"
        )
