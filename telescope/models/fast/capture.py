"""Small forward and backward passes of a backbone as CUDA graphs, where launching kernels takes longer than running them.

A graph is bound to the sizes it was captured with. So rows are followed by rows of padding up to one of a few sizes, which attend
to themselves alone and get a gradient of zero: for the tokens that exist nothing changes. Embedding, head and loss stay outside.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from telescope.models.fast.packed import Packed, hidden_states

SMALL = 5e12  # weights · tokens up to which launching takes longer: 135M with 37,000 tokens, 0.5B with 10,000
MEETINGS = 8  # of a size, before a graph of it is worth half a second
MOST = 16  # graphs of one backbone
_WITHOUT = "updates without CUDA graphs, which are slower if small (%s)"
_log = logging.getLogger("telescope")


def takes_embeddings(backbone: Any) -> bool:
    """Whether the backbone makes of embeddings what it makes of their tokens; some look at the tokens themselves besides."""
    ids, rows = torch.arange(2, device=backbone.device), Packed([2], backbone.device)
    try:
        with torch.no_grad():
            own = hidden_states(backbone, ids[None], rows.positions[None], rows).float()
            ours = hidden_states(
                backbone,
                None,
                rows.positions[None],
                rows,
                backbone.get_input_embeddings()(ids)[None],
            ).float()
        takes = bool((own - ours).norm() <= 1e-2 * own.norm())
    except Exception:  # whatever a model's code may raise: it is not made for this
        takes = False
    if not takes:
        _log.warning(_WITHOUT, f"{type(backbone).__name__} looks at the tokens themselves")
    return takes


class Stretched(Packed):
    """The rows, then rows of padding: numbers of tokens and of rows, and the longest row, are of the sizes `size` knows."""

    def __init__(self, rows: Packed) -> None:
        longest, total = size(rows.longest), size(rows.total)
        whole, rest = divmod(total - rows.total, rows.longest)  # no position that no real row has
        lengths = [*rows.lengths.tolist(), *[rows.longest] * whole, rest]
        super().__init__(lengths + [0] * (size(len(lengths)) - len(lengths)), rows.device)
        self.longest = longest


def size(count: int) -> int:
    """`count` or a little more: one of eight sizes between each power of two and the next."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step


class Captured:
    """The graphs of one backbone. What cannot be captured runs as it always did, with a word in the log."""

    capture = True
    """Off, the same passes run without graphs: what is tested where there is no GPU."""
    pool: Any = None
    """Of all graphs. A forward is followed by its backward before any other begins, so those of one stream lie on top of each other."""
    keeper: Any = None
    """A graph of next to nothing, which holds the pool for good."""
    turn = 0
    """Counts forwards, to know that it is so."""
    idle = 0
    """Bytes of the pool that graphs work in and nobody else can use."""
    peak = 0
    """Bytes, the most that was allocated in any step: `perf`, which lets torch count anew each step, keeps it here."""

    def __init__(self) -> None:
        self.graphs: dict[tuple[Any, ...], Graph] = {}
        self.met: dict[tuple[Any, ...], int] = {}
        self.weights = 0
        self.gradients: list[Tensor] = []
        """Of the trained weights, the same memory for all graphs: valid until the next pass."""
        self.works = True
        self.stream: Any = None
        """Of warming up and capturing, and of nobody else: a graph that goes takes the stream's cuBLAS workspace with it (pytorch#193402),
        so all graphs of a stream go together."""

    def __deepcopy__(self, _: Any) -> Captured:
        return Captured()  # a copy of the model has memory of its own

    @classmethod
    def pool_of(cls, stream: Any) -> Any:
        if cls.pool is None:
            cls.pool, cls.keeper = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
            with capturing(cls.keeper, cls.pool, torch.cuda.Stream(stream.device)):
                torch.zeros(
                    1, device=stream.device
                )  # for good: a pool that no graph holds cannot be captured into again
        return cls.pool

    def hidden(self, backbone: Any, ids: Tensor, rows: Packed) -> Tensor:
        """Last hidden states of the rows' tokens [N], [N, H]."""
        small = torch.is_grad_enabled() and 0 < self.weights_of(backbone) * rows.total <= SMALL
        layout = Stretched(rows) if self.works and small else None
        graph = self._graph(backbone, layout) if layout else None
        if graph is None or layout is None:
            return hidden_states(backbone, ids[None], rows.positions[None], rows)
        embeds = backbone.get_input_embeddings()(ids)
        graph.fill(embeds, layout)
        return _Replay.apply(graph, embeds, *graph.trained)

    def weights_of(self, backbone: Any) -> int:
        self.weights = self.weights or sum(weight.numel() for weight in backbone.parameters())
        return self.weights

    def _graph(self, backbone: Any, layout: Stretched) -> Graph | None:
        """None where there is none for these sizes, or not yet."""
        key = layout.total, len(layout.lengths), layout.longest
        if key in self.graphs:
            if self.graphs[key].bound():
                return self.graphs[key]
            self.graphs.clear()  # weights have moved: no graph is of use
        self.met[key] = self.met.get(key, 0) + 1
        if self.met[key] < MEETINGS or len(self.graphs) >= MOST:
            return None
        try:
            if self.capture and not room(backbone.device):
                raise RuntimeError("not enough memory is free")
            if self.capture and self.stream is None:
                self.stream = torch.cuda.Stream(backbone.device)
            self.graphs[key] = Graph(backbone, layout, self.gradients, self.stream)
        except (RuntimeError, NotImplementedError) as error:
            self.works = False
            self.graphs.clear()
            reason = (
                error.__context__ or error
            )  # what went wrong, not that the capture was broken off
            _log.warning(_WITHOUT, str(reason).splitlines()[0])
        if Captured.pool:
            segments = torch.cuda.memory_snapshot(Captured.pool)
            Captured.idle = sum(
                segment["total_size"] - segment["allocated_size"] for segment in segments
            )
        return self.graphs.get(key)


class Graph:
    """Forward and backward of one size, in fixed memory."""

    def __init__(
        self, backbone: Any, layout: Stretched, gradients: list[Tensor], stream: Any
    ) -> None:
        self.backbone, self.layout, self.gradients, self.capture = (
            backbone,
            layout,
            gradients,
            stream is not None,
        )
        embedding = backbone.get_input_embeddings().weight
        self.weights = list(backbone.parameters())
        self.addresses = [weight.data_ptr() for weight in self.weights]
        self.trained = [
            weight for weight in self.weights if weight.requires_grad and weight is not embedding
        ]
        self.leaves = {  # of their own: the parameters' gradient nodes may be alive, and bound to another stream
            name: weight.detach().requires_grad_(any(weight is one for one in self.trained))
            for name, weight in backbone.named_parameters()
        }
        self.embeds = (
            embedding.detach().new_zeros(layout.total, embedding.shape[1]).requires_grad_()
        )
        if not gradients:
            gradients += [torch.zeros_like(weight, requires_grad=False) for weight in self.trained]
        if not self.capture:
            self.out, self.d_out = self._forward(), torch.zeros_like(self.embeds)
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(
            stream
        ):  # what is only done the first time, kernels chosen and compiled, must not be captured
            self.out = self._forward()
            self.d_out = torch.zeros_like(self.out)
            self._backward()
        torch.cuda.current_stream().wait_stream(stream)
        del self.out
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        pool = Captured.pool_of(stream)
        with capturing(self.forward, pool, stream):
            self.out = self._forward()
        with capturing(self.backward, pool, stream):
            self._backward()
        self.out = (
            self.out.detach()
        )  # lets go of what the backward needed: the next graph's may lie there

    def bound(self) -> bool:
        """Whether the weights are still where they were."""
        return self.addresses == [weight.data_ptr() for weight in self.weights]

    def fill(self, embeds: Tensor, layout: Stretched) -> None:
        self.embeds.detach()[: len(embeds)] = embeds.detach()
        self.layout.positions.copy_(layout.positions)
        self.layout.bounds.copy_(layout.bounds)
        if not self.capture:
            self.layout = layout

    def run(self) -> Tensor:
        if self.capture:
            self.forward.replay()
        else:
            with torch.enable_grad():
                self.out = self._forward()
        Captured.turn += 1
        return self.out.detach()

    def run_back(self) -> None:
        """Leaves the gradients in `d_embeds` and `gradients`."""
        if self.capture:
            self.backward.replay()
        else:
            self._backward()

    def _forward(self) -> Tensor:
        def backbone(**inputs: Any) -> Any:
            return functional_call(self.backbone, self.leaves, (), inputs)

        return hidden_states(
            backbone, None, self.layout.positions[None], self.layout, embeds=self.embeds[None]
        )

    def _backward(self) -> None:
        inputs = [self.embeds, *(leaf for leaf in self.leaves.values() if leaf.requires_grad)]
        self.d_embeds, *grads = torch.autograd.grad(self.out, inputs, self.d_out, allow_unused=True)
        self.used = [grad is not None for grad in grads]
        kept = [gradient for gradient, used in zip(self.gradients, self.used, strict=True) if used]
        with torch.no_grad():
            torch._foreach_copy_(kept, [grad for grad in grads if grad is not None])


@contextmanager
def capturing(graph: Any, pool: Any, stream: Any = None) -> Iterator[None]:
    """As torch.cuda.graph, whose failure leaves the thread on the capture's stream and, before torch 2.12, the allocator capturing."""
    before = torch.cuda.current_stream(stream and stream.device)
    try:
        with torch.cuda.graph(
            graph, pool=pool, stream=stream, capture_error_mode="thread_local"
        ):  # the ledger may be copying meanwhile
            yield
    except BaseException:
        torch.cuda.set_stream(before)
        try:
            torch._C._cuda_endAllocateToPool(before.device_index, pool)
        except RuntimeError:  # it was ended
            pass
        else:
            torch._C._cuda_releasePool(before.device_index, pool)
        raise


def room(device: torch.device) -> bool:
    """Whether twice as much is free as steps took at their peak: a graph keeps its memory, and other passes still need theirs."""
    free, _ = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    cached = torch.cuda.memory_reserved(device) - allocated - Captured.idle
    return free + cached >= 2 * (
        max(Captured.peak, torch.cuda.max_memory_allocated(device)) - allocated
    )


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, graph: Graph, embeds: Tensor, *weights: Tensor) -> Tensor:
        out = graph.run()[: len(embeds)]
        ctx.graph, ctx.turn = graph, Captured.turn
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        graph, count = ctx.graph, len(d_out)
        if Captured.turn != ctx.turn:
            raise RuntimeError(
                "a captured forward was followed by another before its backward, and their memory is one: set model.cuda_graphs = false"
            )
        graph.d_out[:count] = d_out
        graph.d_out[count:].zero_()
        graph.run_back()
        # views, which become the weights' .grad as they are: the learner adds them to the masters' before the next pass
        gradients = (
            grad.detach() if used else None
            for grad, used in zip(graph.gradients, graph.used, strict=True)
        )
        return None, graph.d_embeds[:count], *gradients
