"""One run of a row, in a process of its own: undisturbed, or with ckptd and killed, or resumed.

Everything that is compared goes into a journal, line by line and unbuffered, since the process may be killed after
any line: `batch N digest`, `loss N digest`, `captured N`, `restored N`, `told reason`, `warned sentence`, `refused
sentence`, `crashed sentence`, `end name digest`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import random
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import ckptd
import numpy as np
import torch
from ckptd import rng
from ckptd.session import Session

from .rows import ROWS, Loop, shuffled
from .rules import RULES

# Reasons of a drop that say nothing of the state: memory for the layout, or a slot, is not there yet.
PACKAGE = pathlib.Path(ckptd.__file__).parent
HARMLESS = ("LAYOUT_PREPARING", "NO_FREE_SLOT")


class Journal:
    """Lines of text that survive SIGKILL."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *words: object) -> None:
        """One line, at once."""
        os.write(self._file, (" ".join(map(str, words)).replace("\n", " ") + "\n").encode())


def bytes_of(tensor: torch.Tensor) -> bytes:
    """dtype, shape and every bit of the elements; of a DTensor those of this rank."""
    if hasattr(tensor, "_local_tensor"):
        return f"{tuple(tensor.shape)}{tensor.placements}".encode() + bytes_of(tensor._local_tensor)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return f"{tensor.dtype}{tuple(tensor.shape)}".encode() + data


def leaves(value: Any, path: str) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of everything in `value`: tensors by their bits, the rest by its text."""
    if isinstance(value, torch.nn.Module):
        for name, tensor in [*value.named_parameters(remove_duplicate=False), *value.named_buffers()]:
            yield f"{path}.{name.removeprefix('module.')}", bytes_of(tensor)  # the same whether DDP wraps it or not
    elif isinstance(value, torch.optim.Optimizer):
        for index, group in enumerate(value.param_groups):
            yield from leaves({key: item for key, item in group.items() if key != "params"}, f"{path}.group{index}")
            states = [value.state.get(parameter, {}) for parameter in group["params"]]
            yield from leaves(states, f"{path}.state{index}")
    elif isinstance(value, bytes):
        yield path, value
    elif isinstance(value, torch.Tensor):
        yield path, bytes_of(value)
    elif rng.is_generator(value):
        yield from leaves(rng.generator_state(value), path)
    elif isinstance(value, np.ndarray):
        yield path, f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}")
    elif isinstance(value, (set, frozenset)):
        yield from leaves(sorted(value), path)
    elif hasattr(value, "state_dict"):
        yield from leaves(value.state_dict(), path)
    else:
        yield path, repr(value).encode()


def generators() -> dict[str, Any]:
    """The global generators."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def digest(data: bytes) -> str:
    """Short, for the journal."""
    return hashlib.sha256(data).hexdigest()[:16]


class LateCopy:
    """Lets the copy thread of libckpt come as late as the contract allows: at the gate (late_copy.c)."""

    def __init__(self) -> None:
        self._set = ctypes.CDLL(None).late_copy
        self.gates = 0
        gate = Session.gate

        def opening_gate(session: Session) -> int:
            self.gates += 1
            self.end()
            return gate(session)

        Session.gate = opening_gate  # type: ignore[method-assign]

    def begin(self) -> None:
        """The next capture begins, and stays incomplete."""
        self._set(1)

    def end(self) -> None:
        """What is being captured is captured now."""
        self._set(0)


def endless(loader: Any) -> Iterator[Any]:
    """The plain loop over epochs, with no ckptd in it."""
    while True:
        yield from loader


class Trial:
    """request: row, mode ("undisturbed", "killed", "resumed"), journal, job, seed, kill (step), inside (bool), rule."""

    harmless = HARMLESS

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.row = ROWS[request["row"]]
        self.journal = Journal(request["journal"])
        self.saving = request["mode"] != "undisturbed"
        self.pending: list[tuple[ckptd.Save, int]] = []  # with the number of gates before each
        self.captured = False
        self.ck: ckptd.Checkpointer | None = None

    def run(self) -> None:
        """To the end, or to the kill."""
        if self.request["rule"]:
            RULES[self.request["rule"]].switch_off()
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(5)
        loop = self.row.build()
        loader = loop.loader if loop.loader is not None else shuffled()
        warnings.showwarning = lambda message, *_: self.journal.write("warned", message)
        self.loop(loop, loader)
        for reason in self.ck.dropped if self.ck is not None else ():
            if reason not in self.harmless:
                self.journal.write("told", reason)
        told = {**loop.state, "generators": generators()}
        for name, data in leaves(told, ""):
            self.journal.write("end", name.lstrip("."), digest(data))

    def loop(self, loop: Loop, loader: Any) -> None:
        """The training loop as a user would write it."""
        start, data = 0, loader if loop.direct else ckptd.batches(loader, seed=loop.seed)
        if self.saving:
            self.late = LateCopy()
            start = self.start(loop, data)
        plain = loop.direct or (not self.saving and loop.seed is None)
        source = endless(loader) if plain else data
        for n, batch in zip(range(start + 1, self.row.steps + 1), source):
            self.journal.write("batch", n, digest(b"".join(leaf for _, leaf in leaves(batch, ""))))
            if loop.before is not None:
                loop.before(n)
            loss = loop.train(batch)
            self.journal.write("loss", n, digest(b"".join(leaf for _, leaf in leaves(loss, ""))))
            self.settle()
            self.die(n, inside=False)
            if self.ck is not None:
                self.late.begin()
                save = self.ck.step(n)
                self.die(n, inside=True)
                if save is not None:
                    self.pending.append((save, self.late.gates))
        if self.ck is not None:
            self.settle()

    def start(self, loop: Loop, data: Any) -> int:
        """The checkpointer, and the steps that it brought back."""
        options = {"job": self.request["job"], "every": 1, **loop.options}
        if self.request["rule"]:
            options.setdefault("selfcheck", "off")  # the second line of defence would hide that the first is gone
        if self.request["mode"] == "resumed" and loop.resumed is not None:
            loop.resumed()
        self.ck = ckptd.Checkpointer({**loop.state, "data": data}, **options)
        loop.checkpointer = self.ck
        start = self.ck.restore(timeout=30)
        self.journal.write("restored", start)
        return start

    def settle(self) -> None:
        """What became of the last saves: they have had a whole step's time. Calls no gate, as a loop would not."""
        if self.ck is None:
            return
        self.late.end()
        pending, self.pending = self.pending, []
        for save, gates in pending:
            self.wait(save, 20 if self.late.gates > gates else 0.05)
            if save.dropped_because in self.harmless:
                self.until_ready()
            elif save.state == "dropped":
                self.journal.write("told", save.dropped_because, save.error)
            elif save.state == "capturing":
                self.pending.append((save, gates))
            else:
                self.captured = True
                self.journal.write("captured", save.step)

    def wait(self, save: ckptd.Save, seconds: float) -> None:
        """Until `save` is captured or dropped."""
        deadline = time.monotonic() + seconds
        while save.state == "capturing" and time.monotonic() < deadline:
            time.sleep(0.0005)

    def until_ready(self) -> None:
        """The memory for a new layout is there: the next save can succeed."""
        deadline = time.monotonic() + 20
        time.sleep(0.005)
        while not self.ck._session.info().ready and time.monotonic() < deadline:
            time.sleep(0.001)

    def die(self, n: int, inside: bool) -> None:
        """Here and now, if this is the place; later if nothing was captured yet, on a machine that is busy."""
        if self.request["mode"] != "killed" or inside != self.request["inside"]:
            return
        if n == self.row.steps or (n >= self.request["kill"] and self.captured):
            os.kill(os.getpid(), signal.SIGKILL)


def run(request: dict[str, Any]) -> None:
    """Never raises: what goes wrong is in the journal."""
    trial = Trial(request)
    try:
        trial.run()
    except Exception as error:  # a refusal is a verdict
        trial.journal.write("refused" if is_refusal(error) else "crashed", f"{type(error).__name__}: {error}")
        traceback.print_exc()


def is_refusal(error: Exception) -> bool:
    """Whether ckptd said no, rather than that something broke."""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ckptd.CkptdError) or (
        isinstance(error, (TypeError, ValueError)) and PACKAGE in pathlib.Path(raised_in).parents
    )
