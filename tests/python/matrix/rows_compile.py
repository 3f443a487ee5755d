"""Rows about torch.compile."""

from __future__ import annotations

import os
import pathlib
import shutil
import sysconfig

import torch
from torch import nn

from .rows import Loop, Net, loss_of, row, shuffled, updating
from .rows_loops import pair


def no_compiler() -> str | None:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "inductor needs a C++ compiler"
    header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
    return None if header.exists() else f"inductor needs {header}: apt install python3-dev"


@row("torch.compile, inductor", "gate", skip=no_compiler, steps=6)
def inductor() -> Loop:
    # Both cost more than all the rest: each check of the processor starts a Python that imports torch.
    torch._inductor.config.cpp_cache_precompile_headers = False
    torch._inductor.cpu_vec_isa.valid_vec_isa_list = list
    model, optimizer = pair()
    loader = shuffled(drop_last=True)  # one shape, compiled once
    return Loop({"model": model, "optim": optimizer}, updating(torch.compile(model), optimizer), loader)


@row("torch.compile (aot_eager), the compiled module in the state", "gate", "eager", "generators", steps=6)
def compiled() -> Loop:
    model = torch.compile(Net(nn.Dropout(0.2), nn.BatchNorm1d(16)), backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("torch.compile of the optimizer's step (aot_eager)", "gate", steps=6)
def compiled_step() -> Loop:
    model, optimizer = pair()
    step = torch.compile(optimizer.step, backend="aot_eager")

    def train(batch):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        step()
        return loss

    return Loop({"model": model, "optim": optimizer}, train)
