"""How one step of model.Training is run: as written, compiled, or as a CUDA graph that is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from model import Make, Training
from sizes import Size

_BEFORE_CAPTURE = 3  # steps on a side stream: kernels and libraries are loaded by then


class Loop:
    """As written; `backend`: the forward pass, and with it the backward one, compiled by that backend of torch's.

    make: the optimizer, instead of AdamW."""

    def __init__(self, size: Size, device: str, backend: str = "", make: Make | None = None) -> None:
        self.training = Training(size, device, make=make)
        self._forward = torch.compile(self.training.model, backend=backend) if backend else None

    def attach(self, checkpointer: Any) -> None:
        """A checkpointer that was made after this."""

    def step(self, n: int) -> torch.Tensor:
        """Step n as a whole; the loss."""
        loss = self.training.gradients(self.training.tokens(n), self._forward)
        self.training.update()
        return loss

    def close(self) -> None:
        """Gives the memory back, as far as it can."""
        if self._forward is not None:
            self._forward = None
            torch._dynamo.reset()


class GraphLoop:
    """Forward, backward and update in one graph, captured before anything is restored into its memory.

    A replay fires no hook. On the CPU, which has no graphs, the same is called each time, without hooks.
    """

    def __init__(self, size: Size, device: str) -> None:
        self.training = Training(size, device, capturable=device != "cpu")
        self._tokens = self.training.tokens(0)
        self._gate: Callable[[], None] = lambda: None
        self._graph: Any = None
        if device == "cpu":
            self._rewind(self._whole)
        else:
            self._rewind(self._warm_up)
            self._rewind(self._capture)

    def attach(self, checkpointer: Any) -> None:
        """Its gate is passed before each replay."""
        self._gate = checkpointer.gate

    def step(self, n: int) -> torch.Tensor:
        """Step n as a whole; the loss."""
        self._gate()
        return self.replay_without_gate(n)

    def replay_without_gate(self, n: int) -> torch.Tensor:
        """What must not be done while something is being captured."""
        self._tokens.copy_(self.training.tokens(n))
        if self._graph is None:
            self._whole()
        else:
            self._graph.replay()
        return self._loss

    def close(self) -> None:
        self._graph = None

    def _whole(self) -> None:
        optimizer = self.training.optimizer
        if self._graph is None and self.training.device == "cpu":
            optimizer.step = lambda: type(optimizer).step.__wrapped__(optimizer)
        self._loss = self.training.gradients(self._tokens)
        self.training.update()

    def _warm_up(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_BEFORE_CAPTURE):
                self._whole()
        torch.cuda.current_stream().wait_stream(side)

    def _capture(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._whole()

    def _rewind(self, train: Callable[[], None]) -> None:
        """Runs `train` and puts everything back as it was: the optimizer's state exists then, and is zero."""
        held = [*self.training.model.parameters(), *self.training.masters.values()]
        before = [tensor.detach().clone() for tensor in held]
        on_gpu = self.training.device != "cpu"
        generators = torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None
        train()
        with torch.no_grad():
            for tensor, value in zip(held, before, strict=True):
                tensor.copy_(value)
        for state in self.training.optimizer.state.values():
            for value in state.values():
                value.zero_()
        torch.set_rng_state(generators[0])
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.set_rng_state(generators[1])


def _compiled(backend: str) -> Callable[[Size, str], Any]:
    def build(size: Size, device: str) -> Any:
        loop = Loop(size, device, backend)
        try:
            with torch.no_grad():
                loop._forward(loop.training.tokens(0))
        except Exception as error:
            return f"torch.compile by {backend} does not run here: {type(error).__name__}: {str(error)[:200]}"
        torch.manual_seed(0)
        return loop

    return build


class History(torch.optim.LBFGS):
    """LBFGS has its history in lists. One iteration a step, with the gradients that are there."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.01, max_iter=1, history_size=3)

    def step(self) -> None:
        super().step(lambda: torch.zeros(()))


class Lists(torch.optim.Optimizer):
    """Has its moments in a list, as SOAP has its matrices."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 3e-4})

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            moments = self.state[parameter].setdefault("moments", [])
            if not moments:
                moments += [torch.zeros_like(parameter), torch.zeros_like(parameter)]
            moments[0].lerp_(parameter.grad, 0.1)
            moments[1].lerp_(parameter.grad.square(), 0.01)
            parameter.addcdiv_(moments[0], moments[1].sqrt() + 1e-8, value=-self.param_groups[0]["lr"])


def _optimized(make: Make) -> Callable[[Size, str], Any]:
    return lambda size, device: Loop(size, device, make=make)


# By name: Loop, GraphLoop, or the reason why it cannot be had.
LOOPS: dict[str, Callable[[Size, str], Any]] = {
    "plain": Loop,
    "graph": GraphLoop,
    "inductor": _compiled("inductor"),
    "aot_eager": _compiled("aot_eager"),
    "cudagraphs": _compiled("cudagraphs"),
    "lbfgs": _optimized(History),
    "lists": _optimized(Lists),
}
