"""Where prompts come from, and in which order.

build.py       training and held-out prompts of a config
loader.py      tokenised prompts, and the batch of each step
chat.py        chat messages: checked, and written out by the chat template
completions.py prompts with given completions, for the warm start
files.py       prompts from files (jsonl, csv, parquet) and from data sets of the hub
sources.py     data that a script passes: rows, data sets, streams
stream.py      prompts that are read from a stream, step by step
gym.py         problems that reasoning-gym makes, and their scores
arithmetic.py  the built-in task: is this sum right? arithmetic_model/ is what it starts from
toys.py        the built-in tasks with a tool: calculator, search
tiny.py        the small Llama of the built-in tasks
seeds.py       one seed from several
rng.py         the global random generators, which a reward function may use

May import models, batch, config and errors. The built-in tasks import torch
only to make their model.
"""
