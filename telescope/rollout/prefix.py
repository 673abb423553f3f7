"""Sampling on from the middle of a response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from telescope.rollout.sampler import Rollout, Sampler, left_pad, unpadded


class ContinuingSampler:
    """Writes responses that begin with given tokens, by another sampler.

    A response has at most `limit` tokens with those that were given. The log-probs of given tokens
    are 0: they were not sampled here.
    """

    def __init__(
        self, sampler: Sampler, prefixes: Sequence[Sequence[int]], *, limit: int, pad: int
    ) -> None:
        self.sampler = sampler
        self.prefixes = [list(prefix) for prefix in prefixes]
        self.limit = limit
        self.pad = pad
        self.version = sampler.version

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Sampler.load_weights`."""
        self.sampler.load_weights(named, version)
        self.version = version

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Rollout:
        """See `Sampler.generate`. Row i begins with prefix i."""
        device = input_ids.device
        prompts = unpadded(input_ids, attention_mask)
        begun = [prompt + given for prompt, given in zip(prompts, self.prefixes, strict=True)]
        limits = [self.limit - len(given) for given in self.prefixes]
        ids, mask = left_pad(begun, self.pad, device)
        out = self.sampler.generate(ids, mask, **options, limits=limits)

        given_lengths = torch.tensor([len(given) for given in self.prefixes], device=device)
        lengths = out.lengths + given_lengths
        width = int(lengths.max())
        padded = [given + [self.pad] * (width - len(given)) for given in self.prefixes]
        responses = torch.tensor(padded, device=device)
        log_probs = torch.zeros(responses.shape, device=device)
        here = torch.arange(out.responses.shape[1], device=device)
        written = here < out.lengths[:, None]
        row, column = written.nonzero(as_tuple=True)
        place = column + given_lengths[row]
        responses[row, place] = out.responses[row, column]
        log_probs[row, place] = out.log_probs[row, column].float()
        return Rollout(responses, lengths, log_probs, out.truncated)
