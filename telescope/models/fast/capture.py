"""CUDA graphs for small training passes, whose kernels take longer to launch than to run.

A graph is bound to the sizes it was captured with. So rows of padding follow the real rows, up to
one of a few sizes. The padding attends only to itself and gets a gradient of zero: nothing changes
for the real tokens. Embedding, head and loss stay outside the graph.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from telescope.models.fast.packed import PackedRows, hidden_states

# Passes with more weights · tokens than this take longer to run than to launch:
# 37,000 tokens of a 135M model, 10,000 of a 0.5B model.
MAX_WORK = 5e12
# A graph takes half a second to capture: a size must come up this often before it is worth it.
CAPTURE_AFTER = 8
MAX_GRAPHS = 16  # of one backbone

_WITHOUT = "updates without CUDA graphs, which are slower if small (%s)"
_log = logging.getLogger("telescope")


def takes_embeddings(backbone: Any) -> bool:
    """Whether the backbone computes the same from embeddings as from their tokens.

    Some models also look at the tokens themselves.
    """
    ids = torch.arange(2, device=backbone.device)  # [2]
    rows = PackedRows([2], backbone.device)
    positions = rows.positions[None]  # [1, 2]
    try:
        with torch.no_grad():
            from_ids = hidden_states(backbone, ids[None], positions, rows).float()
            embeds = backbone.get_input_embeddings()(ids)[None]  # [1, 2, H]
            from_embeds = hidden_states(backbone, None, positions, rows, embeds).float()
        agrees = bool((from_ids - from_embeds).norm() <= 1e-2 * from_ids.norm())
    except Exception:  # a model's own code may raise anything
        agrees = False
    if not agrees:
        _log.warning(_WITHOUT, f"{type(backbone).__name__} looks at the tokens themselves")
    return agrees


def padded_size(count: int) -> int:
    """`count`, rounded up to one of eight sizes between each power of two and the next."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step


class PaddedRows(PackedRows):
    """Rows followed by rows of padding.

    The number of tokens, the number of rows and the longest row are all a `padded_size`.
    """

    def __init__(self, rows: PackedRows) -> None:
        missing = padded_size(rows.total) - rows.total
        # No padding row is longer than a real one: the model may have no such positions.
        full_rows, rest = divmod(missing, rows.longest)
        lengths = [*rows.lengths.tolist(), *[rows.longest] * full_rows, rest]
        empty_rows = padded_size(len(lengths)) - len(lengths)
        super().__init__(lengths + [0] * empty_rows, rows.device)
        self.longest = padded_size(rows.longest)


class GraphMemory:
    """The memory that all graphs of one device share, and what is known of it.

    Actor and critic have the same one. A forward is followed by its backward before any other
    forward begins, so all graphs may work in the same memory.
    """

    def __init__(self) -> None:
        self.forwards = 0
        """Number of forwards so far. It tells whether a backward belongs to the last one."""
        self.idle = 0
        """Bytes in which graphs work: reserved, not allocated, and of no use to anybody else."""
        self.peak = 0
        """The most bytes that were allocated in any step.

        The step's timer, which resets torch's own count, keeps it here.
        """
        self._pool: Any = None
        self._keeper: Any = None

    def __deepcopy__(self, _: Any) -> GraphMemory:
        return self  # a copy of a model is on the same device

    def pool(self, stream: Any) -> Any:
        """The pool that graphs are captured into.

        An almost empty graph holds it: a pool that no graph holds cannot be captured into again.
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._keeper = torch.cuda.CUDAGraph()
            with capturing(self._keeper, self._pool, torch.cuda.Stream(stream.device)):
                torch.zeros(1, device=stream.device)
        return self._pool

    def measure_idle(self) -> None:
        """Counts `idle` anew, after a capture."""
        if self._pool is None:
            return
        segments = torch.cuda.memory_snapshot(self._pool)
        self.idle = sum(s["total_size"] - s["allocated_size"] for s in segments)

    def has_room(self, device: torch.device) -> bool:
        """Whether twice as much is free as steps took at their peak.

        A graph keeps its memory, and other passes still need theirs.
        """
        free, _ = torch.cuda.mem_get_info(device)
        allocated = torch.cuda.memory_allocated(device)
        cached = torch.cuda.memory_reserved(device) - allocated - self.idle
        peak = max(self.peak, torch.cuda.max_memory_allocated(device))
        return free + cached >= 2 * (peak - allocated)


class GraphRunner:
    """The graphs of one backbone. A pass that cannot be captured runs eagerly, and the log says so.

    With `capture` off, the same passes run without graphs: the tests need no GPU that way.
    """

    def __init__(self, memory: GraphMemory, *, capture: bool = True) -> None:
        self.memory = memory
        self.capture = capture
        self.works = True
        self.graphs: dict[tuple[int, ...], CapturedPass] = {}
        self.gradients: list[Tensor] = []
        """Gradients of the trained weights, shared by all graphs: valid until the next pass."""
        self.stream: Any = None
        """Only for warm-up and capture.

        A destroyed graph takes its stream's cuBLAS workspace with it (pytorch#193402), so all
        graphs of a stream are destroyed together.
        """
        self._times_seen: dict[tuple[int, ...], int] = {}
        self._num_weights = 0

    def __deepcopy__(self, _: Any) -> GraphRunner:
        return GraphRunner(self.memory, capture=self.capture)  # graphs are bound to their weights

    def hidden(self, backbone: Any, ids: Tensor, rows: PackedRows) -> Tensor:
        """Last hidden states [N, H] of the rows' tokens [N]."""
        layout = PaddedRows(rows) if self.works and self._is_small(backbone, rows) else None
        graph = None if layout is None else self._graph_for(backbone, layout)
        if graph is None or layout is None:
            return hidden_states(backbone, ids[None], rows.positions[None], rows)
        embeds = backbone.get_input_embeddings()(ids)  # [N, H]
        graph.fill(embeds, layout)
        replay: Any = _Replay.apply  # torch declares no types for it
        out: Tensor = replay(graph, embeds, *graph.trained)
        return out

    def _is_small(self, backbone: Any, rows: PackedRows) -> bool:
        if not torch.is_grad_enabled():
            return False
        if not self._num_weights:
            self._num_weights = sum(weight.numel() for weight in backbone.parameters())
        return 0 < self._num_weights * rows.total <= MAX_WORK

    def _graph_for(self, backbone: Any, layout: PaddedRows) -> CapturedPass | None:
        """The graph of these sizes, captured now if it is time; None if there is none (yet)."""
        key = (layout.total, len(layout.lengths), layout.longest)
        if key in self.graphs:
            if self.graphs[key].is_bound():
                return self.graphs[key]
            self.graphs.clear()  # the weights have moved: all graphs are useless
        self._times_seen[key] = self._times_seen.get(key, 0) + 1
        if self._times_seen[key] < CAPTURE_AFTER or len(self.graphs) >= MAX_GRAPHS:
            return None
        try:
            self.graphs[key] = self._capture(backbone, layout)
        except (RuntimeError, NotImplementedError) as error:
            self.works = False
            self.graphs.clear()
            # The context is what went wrong; the error itself says that the capture was broken off.
            reason = error.__context__ or error
            _log.warning(_WITHOUT, str(reason).splitlines()[0])
        self.memory.measure_idle()
        return self.graphs.get(key)

    def _capture(self, backbone: Any, layout: PaddedRows) -> CapturedPass:
        if self.capture:
            if not self.memory.has_room(backbone.device):
                raise RuntimeError("not enough memory is free")
            if self.stream is None:
                self.stream = torch.cuda.Stream(backbone.device)
        return CapturedPass(backbone, layout, self.gradients, self.memory, self.stream)


class CapturedPass:
    """Forward and backward of one size, in fixed memory. Without a `stream` they run eagerly."""

    def __init__(
        self,
        backbone: Any,
        layout: PaddedRows,
        gradients: list[Tensor],
        memory: GraphMemory,
        stream: Any,
    ) -> None:
        self.backbone = backbone
        self.layout = layout
        self.gradients = gradients
        self.memory = memory
        self.is_captured = stream is not None
        embedding = backbone.get_input_embeddings().weight
        self.weights: list[Tensor] = list(backbone.parameters())
        self.addresses = [weight.data_ptr() for weight in self.weights]
        self.trained = [w for w in self.weights if w.requires_grad and w is not embedding]
        # Leaves of our own: the parameters' gradient nodes may be bound to another stream.
        self.leaves = {
            name: weight.detach().requires_grad_(any(weight is one for one in self.trained))
            for name, weight in backbone.named_parameters()
        }
        embeds = embedding.detach().new_zeros(layout.total, embedding.shape[1])  # [N, H]
        self.embeds: Tensor = embeds.requires_grad_()
        if not gradients:
            gradients += [torch.zeros_like(weight, requires_grad=False) for weight in self.trained]
        if self.is_captured:
            self._capture(stream)
        else:
            self.out = self._forward()  # [N, H]
            self.d_out = torch.zeros_like(self.embeds)

    def _capture(self, stream: Any) -> None:
        # Warm-up: kernels are chosen and compiled the first time, which must not be captured.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.out = self._forward()
            self.d_out = torch.zeros_like(self.out)
            self._backward()
        torch.cuda.current_stream().wait_stream(stream)
        del self.out
        self.forward_graph = torch.cuda.CUDAGraph()
        self.backward_graph = torch.cuda.CUDAGraph()
        pool = self.memory.pool(stream)
        with capturing(self.forward_graph, pool, stream):
            self.out = self._forward()
        with capturing(self.backward_graph, pool, stream):
            self._backward()
        # Lets go of what the backward needed: the next graph may work in that memory.
        self.out = self.out.detach()

    def is_bound(self) -> bool:
        """Whether the weights are still where they were at capture."""
        return self.addresses == [weight.data_ptr() for weight in self.weights]

    def fill(self, embeds: Tensor, layout: PaddedRows) -> None:
        """Copies the inputs of the next pass into the graph's memory."""
        self.embeds.detach()[: len(embeds)] = embeds.detach()
        self.layout.positions.copy_(layout.positions)
        self.layout.bounds.copy_(layout.bounds)
        if not self.is_captured:
            self.layout = layout

    def run_forward(self) -> Tensor:
        if self.is_captured:
            self.forward_graph.replay()
        else:
            with torch.enable_grad():
                self.out = self._forward()
        self.memory.forwards += 1
        return self.out.detach()

    def run_backward(self) -> None:
        """Leaves the gradients in `d_embeds` and `gradients`."""
        if self.is_captured:
            self.backward_graph.replay()
        else:
            self._backward()

    def _forward(self) -> Tensor:
        def backbone(**inputs: Any) -> Any:
            return functional_call(self.backbone, self.leaves, (), inputs)

        positions = self.layout.positions[None]  # [1, N]
        embeds = self.embeds[None]  # [1, N, H]
        return hidden_states(backbone, None, positions, self.layout, embeds=embeds)

    def _backward(self) -> None:
        inputs = [self.embeds, *(leaf for leaf in self.leaves.values() if leaf.requires_grad)]
        self.d_embeds, *grads = torch.autograd.grad(self.out, inputs, self.d_out, allow_unused=True)
        self.used = [grad is not None for grad in grads]
        kept = [gradient for gradient, used in zip(self.gradients, self.used, strict=True) if used]
        with torch.no_grad():
            torch._foreach_copy_(kept, [grad for grad in grads if grad is not None])


@contextmanager
def capturing(graph: Any, pool: Any, stream: Any = None) -> Iterator[None]:
    """torch.cuda.graph, but a failure leaves nothing behind.

    A failure of torch's leaves the thread on the capture's stream and, before torch 2.12, the
    allocator capturing. Other threads may use the GPU meanwhile: the ledger copies tensors.
    """
    before = torch.cuda.current_stream(stream and stream.device)
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
    except BaseException:
        torch.cuda.set_stream(before)
        try:
            torch._C._cuda_endAllocateToPool(before.device_index, pool)
        except RuntimeError:
            pass  # torch has ended it
        else:
            torch._C._cuda_releasePool(before.device_index, pool)
        raise


class _Replay(torch.autograd.Function):
    """A captured pass as an operation of autograd."""

    @staticmethod
    def forward(ctx: Any, graph: CapturedPass, embeds: Tensor, *weights: Tensor) -> Tensor:
        out = graph.run_forward()[: len(embeds)]
        ctx.graph = graph
        ctx.number = graph.memory.forwards
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        graph: CapturedPass = ctx.graph
        if graph.memory.forwards != ctx.number:
            raise RuntimeError(
                "a captured forward was followed by another before its backward, and they share "
                "memory: set model.cuda_graphs = false"
            )
        count = len(d_out)
        graph.d_out[:count] = d_out
        graph.d_out[count:].zero_()
        graph.run_backward()
        # Views, which become the weights' .grad without a copy: the learner adds them to the
        # masters' before the next pass.
        gradients = [
            grad.detach() if used else None
            for grad, used in zip(graph.gradients, graph.used, strict=True)
        ]
        return None, graph.d_embeds[:count], *gradients
