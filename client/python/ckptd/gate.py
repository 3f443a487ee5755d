"""The gate: no optimizer changes captured tensors before they are copied.

Hooks are the *global* ones of torch.optim: they fire for inner, wrapped, in-backward and several optimizers, which
hooks on one instance miss. They are registered once per process, with the first checkpointer, and cost a step
9 us (measured) while nothing is being captured.

Schedule-free optimizers write to their parameters in `train()` and `eval()` too. For these there are no hooks: the
methods of the class are wrapped, once one of its optimizers has stepped, and stay so as torch's own wrapper of `step`.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

IN_GRAPH = (
    "the step() of {} is being captured into a CUDA graph, whose replays fire no hook: what it updates is captured "
    "eagerly from now on; keep step() out of the graph to have it captured beside training"
)
HOOKS_LOST = (
    "torch.compile took the hooks of the optimizers away, as torch 2.1 and 2.2 do: what they update is captured eagerly "
    "from now on; torch 2.3 and newer leave the hooks there"
)
GATE_IN_GRAPH = "ck.gate() does nothing in a CUDA graph's replays; call it before each graph.replay() instead"


class Watcher(Protocol):
    """Who wants to know about optimizer steps. what: the method that changes parameters, "step", "train" or "eval"."""

    def before_update(self, optimizer: Any, what: str = "step") -> None:
        """`optimizer` is about to change its parameters; returns when it may."""

    def after_update(self, optimizer: Any, what: str = "step") -> None:
        """`optimizer` has changed them."""


_watchers: tuple[weakref.ref[Any], ...] = ()  # a set of weak references would cost each step two of its copies
_handles: list[Any] = []


def watch(watcher: Watcher) -> None:
    """Calls `watcher` around each step of every torch optimizer until `unwatch`, or until it is garbage."""
    _keep(lambda other: other is not watcher, weakref.ref(watcher))
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_before))
        _handles.append(register_optimizer_step_post_hook(_after))


def unwatch(watcher: Watcher) -> None:
    """Inverse of `watch`; unknown watchers are ignored. The last one takes the hooks away."""
    _keep(lambda other: other is not watcher)
    if not _watchers:
        while _handles:
            _handles.pop().remove()


def _keep(is_kept: Callable[[Any], bool], *added: weakref.ref[Any]) -> None:
    """Of those that still live; their order is of no matter."""
    global _watchers
    _watchers = tuple(one for one in _watchers if one() is not None and is_kept(one())) + added


def _before(optimizer: Any, args: Any, kwargs: Any, what: str = "step") -> None:
    for reference in _watchers:
        watcher = reference()
        if watcher is not None:
            watcher.before_update(optimizer, what)


def _after(optimizer: Any, args: Any, kwargs: Any, what: str = "step") -> None:
    for reference in _watchers:
        watcher = reference()
        if watcher is not None:
            watcher.after_update(optimizer, what)


def watch_switches(kind: type) -> None:
    """Calls the watchers around `train` and `eval` of a class of optimizers that has both."""
    found = {name: inspect.getattr_static(kind, name, None) for name in ("train", "eval")}
    if not all(map(_is_method, found.values())):
        return
    for name, method in found.items():
        if not hasattr(method, "watched"):
            setattr(kind, name, _watched(method, name))


def _is_method(found: Any) -> bool:
    return callable(found) and hasattr(found, "__get__") and not isinstance(found, staticmethod)


def _watched(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def switch(self: Any, *args: Any, **kwargs: Any) -> Any:
        _before(self, args, kwargs, what)
        result = method(self, *args, **kwargs)
        _after(self, args, kwargs, what)
        return result

    switch.watched = True  # type: ignore[attr-defined]
    return switch


_WRAPPER = Optimizer.profile_hook_step(lambda *_: None).__code__


def _is_wrapped(kind: type) -> bool:
    """Whether `step` of this class of optimizers is the wrapper that calls hooks, or wraps it."""
    step = getattr(kind, "step", None)
    while step is not None and getattr(step, "__code__", None) is not _WRAPPER:
        step = getattr(step, "__wrapped__", None)
    return step is not None


def capturing() -> bool:
    """Whether what this thread does goes into a CUDA graph, whose replays fire no hook and call no gate()."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class FiredHooks:
    """Which optimizers have fired a hook: only their tensors may be lazy. One that never does cannot be gated."""

    def __init__(self) -> None:
        self._fired: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replayed: weakref.WeakSet[Any] = weakref.WeakSet()
        self._newest: weakref.ref[Any] | None = None  # the last that was noted: most runs have one
        self._wrapped: set[type] = set()  # classes of those that fired, as far as the wrapper was found
        self.updates = 0  # steps of optimizers, and calls of gate()
        self.changes = 0  # how often the answer of `has` may have become another one

    def note(self, optimizer: Any) -> None:
        """`optimizer` fired its post-hook."""
        self.updates += 1
        if self._newest is not None and self._newest() is optimizer:
            return  # a look into a set of weak references takes longer than all the rest
        self._newest = weakref.ref(optimizer)
        if optimizer not in self._fired:
            self._fired.add(optimizer)
            self.changes += 1
            watch_switches(type(optimizer))
            if _is_wrapped(type(optimizer)):
                self._wrapped.add(type(optimizer))

    def has(self, optimizer: Any) -> bool:
        """Whether `optimizer` fires a hook whenever it steps."""
        return optimizer in self._fired and optimizer not in self._replayed

    def replay(self, optimizer: Any) -> bool:
        """A step of `optimizer` is captured into a graph: it will step without a hook. True the first time."""
        if optimizer in self._replayed:
            return False
        self._replayed.add(optimizer)
        self.changes += 1
        return True

    def any(self) -> bool:
        """Whether any optimizer fired one."""
        return bool(self._fired)

    def lost(self) -> bool:
        """Forgets the optimizers whose hooks were taken away. True if there were some.

        torch 2.1 and 2.2 do that to all of torch's optimizers when torch.compile is first used.
        """
        gone = {kind for kind in self._wrapped if not _is_wrapped(kind)}
        if gone:
            self._wrapped -= gone
            self._newest = None
            self._fired = weakref.WeakSet(one for one in self._fired if type(one) not in gone)
            self.changes += 1
        return bool(gone)

    def sees_updates(self) -> bool:
        """Whether a step in which no hook fires is one without an update."""
        return bool(self._fired) and not self._replayed

    def forget(self) -> None:
        """Hooks fire no longer: nobody is trusted until it fires again."""
        self._newest = None
        self._fired.clear()
        self.changes += 1
