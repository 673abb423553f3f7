"""Explains one response: every number recomputed, with its formula and a sentence about it.

A `Sample` holds the numbers. `trace` recomputes them, `words` says what they mean, `questions`
answers a learner's questions with them; `terminal`, `markdown` and `stages` print. Imports
telescope.batch, telescope.config and telescope.algorithms' definitions, and no torch.
"""
