"""Our GAE against the plain per-token loop, on this machine's CPU.

    python benchmarks/gae.py

The loop is the usual one (a Python loop over T that carries value and advantage past masked tokens,
then a stack). Both run in turn, so that other work on the machine slows both; times are medians.
Where the cores are shared, OMP_NUM_THREADS=1 gives steadier numbers: with more threads each
operator waits for the slowest one.
"""

import statistics
import time
from collections import Counter

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from telescope.algorithms import gae

GAMMA, LAM = 0.99, 0.95
ROWS, LENGTH, REPETITIONS = 1024, 8192, 7
VIEWS = {
    "view",
    "slice",
    "select",
    "expand",
    "unsqueeze",
    "squeeze",
    "_unsafe_view",
    "alias",
    "t",
    "detach",
    "_reshape_alias",
}


def loop_gae(rewards, values, mask):
    next_value = advantage = torch.zeros_like(rewards[:, 0])
    backwards = []
    for t in reversed(range(rewards.shape[1])):
        on = mask[:, t]
        delta = rewards[:, t] + GAMMA * next_value - values[:, t]
        next_value = values[:, t] * on + (1 - on) * next_value
        advantage = (delta + GAMMA * LAM * advantage) * on + (1 - on) * advantage
        backwards.append(advantage)
    advantages = torch.stack(backwards[::-1], dim=1)
    return advantages, advantages + values


def our_gae(rewards, values, mask):
    return gae(rewards, values, mask, gamma=GAMMA, lam=LAM)


class CountKernels(TorchDispatchMode):
    """Counts the operators that run a kernel (views launch nothing)."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        if name not in VIEWS:
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


def batch(rows, length, holes):
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(rows, length, generator=generator) for _ in range(2))
    lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
    mask = torch.arange(length) < lengths
    if holes:
        mask &= torch.rand(rows, length, generator=generator) < 0.7
    return rewards, values, mask.float()


def median_times(functions, arguments, repetitions):
    times = [[] for _ in functions]
    for _ in range(repetitions + 1):
        for function, seconds in zip(functions, times, strict=True):
            start = time.perf_counter()
            function(*arguments)
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds[1:]) for seconds in times]  # the first run warms up


def main():
    console = Console()

    table = Table("mask", "loop, ms", "ours, ms", "loop / ours", "largest difference")
    machine = f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
    table.title = f"GAE, {ROWS} × {LENGTH} float32, {machine}"
    for holes in (False, True):
        arguments = batch(ROWS, LENGTH, holes)
        on = arguments[2].bool()
        apart = max(
            float((a - b)[on].abs().max())
            for a, b in zip(loop_gae(*arguments), our_gae(*arguments), strict=True)
        )
        assert apart < 1e-4, apart
        loop, ours = median_times((loop_gae, our_gae), arguments, REPETITIONS)
        table.add_row(
            "holes" if holes else "right-padded",
            f"{loop * 1e3:.0f}",
            f"{ours * 1e3:.0f}",
            f"{loop / ours:.1f}",
            f"{apart:.1e}",
        )
    console.print(table)

    table = Table(
        "T",
        "padded, ms",
        "kernels",
        "holes, ms",
        "kernels",
        "kernels of the loop",
        title=f"Ours by length, {ROWS} rows",
    )
    for length in (512, 2048, 8192):
        cells = [str(length)]
        for holes in (False, True):
            arguments = batch(ROWS, length, holes)
            with CountKernels() as kernels:
                our_gae(*arguments)
            cells += [
                f"{median_times((our_gae,), arguments, REPETITIONS)[0] * 1e3:.1f}",
                str(kernels.seen.total()),
            ]
        with CountKernels() as kernels:
            loop_gae(*batch(2, length, False))
        table.add_row(*cells, str(kernels.seen.total()))
    console.print(table)


if __name__ == "__main__":
    main()
