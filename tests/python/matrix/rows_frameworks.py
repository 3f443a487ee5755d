"""Rows about loops on top of torchdata, transformers, accelerate and Fabric. Their imports stay inside the builders."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from .rows import Loop, Net, dataset, loss_of, row, updating
from .rows_data import loop

O = torch.optim
TORCHDATA = ("torchdata.stateful_dataloader",)
TRANSFORMERS = ("transformers.models.gpt2.modeling_gpt2",)
ACCELERATE = ("accelerate",)
FABRIC = ("lightning.fabric",)


def stateful(data: Any = None, **options: Any) -> Any:
    """torchdata's loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset() if data is None else data, 4, **options)


OWN = ("loader's own state", "generators after the loader's own state")


@row("StatefulDataLoader (torchdata), shuffled, ckptd.batches(loader)", *OWN, imports=TORCHDATA)
def torchdata_batches() -> Loop:
    return loop(stateful(shuffle=True))


@row("StatefulDataLoader, shuffled, two workers, ckptd.batches(loader)", *OWN, imports=TORCHDATA)
def torchdata_batches_workers() -> Loop:
    return loop(stateful(shuffle=True, num_workers=2))


@row("StatefulDataLoader with a generator of its own, ckptd.batches(loader)", OWN[0], imports=TORCHDATA)
def torchdata_generator() -> Loop:
    return loop(stateful(shuffle=True, generator=torch.Generator().manual_seed(4)))


def direct(loader: Any) -> Loop:
    """The loader itself in the state."""
    found = loop(loader)
    found.direct = True
    return found


DIRECT = "the iterator before the generators"


@row("StatefulDataLoader, shuffled, itself in the state", DIRECT, imports=TORCHDATA)
def torchdata_direct() -> Loop:
    return direct(stateful(shuffle=True))


@row("StatefulDataLoader, shuffled, two workers, itself in the state", DIRECT, imports=TORCHDATA)
def torchdata_direct_workers() -> Loop:
    return direct(stateful(shuffle=True, num_workers=2))


@row(
    "a DataLoader itself in the state",
    refused="data: a DataLoader cannot tell its position; put ckptd.batches(loader) here and iterate over that",
)
def loader_direct() -> Loop:
    return direct(DataLoader(dataset(), 4, shuffle=True))


def gpt2() -> nn.Module:
    """Two layers; dropout, tied embeddings, buffers that are not saved."""
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0, resid_pdrop=0.1))


def tokens() -> Any:
    """Dicts, as a tokenizer gives them."""
    ids = torch.randint(32, (22, 12), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": item, "labels": item} for item in ids]


@row(
    "transformers: GPT-2 with dropout and tied embeddings, AdamW, warm-up",
    "gate", "generators", "into the same tensors", "optimizer state", imports=TRANSFORMERS,
)  # fmt: skip
def transformers_gpt2() -> Loop:
    from transformers import get_linear_schedule_with_warmup

    model = gpt2()
    optimizer = O.AdamW(model.parameters(), lr=0.01)
    scheduler = get_linear_schedule_with_warmup(optimizer, 3, 20)

    def train(batch: Any) -> torch.Tensor:
        loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    state = {"model": model, "optim": optimizer, "sched": scheduler}
    return Loop(state, train, DataLoader(tokens(), 4, shuffle=True))


def prepared(**options: Any) -> Loop:
    """The loop of accelerate's documentation; the schedule is its wrapper too."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=4, dataloader_config=DataLoaderConfiguration(**options)
    )
    model = Net(nn.Dropout(0.2))
    optimizer = O.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, DataLoader(dataset(), 4, shuffle=True), O.lr_scheduler.StepLR(optimizer, 2, 0.5)
    )

    def train(batch: Any) -> torch.Tensor:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss

    return Loop({"model": model, "optim": optimizer, "sched": scheduler}, train, loader)


@row(
    "accelerate: everything prepared, accelerator.accumulate, step() after each micro-batch",
    "position", "optimizer state", "plain values",
    imports=ACCELERATE, note="saved after updates only", steps=16, first_kill=9,
)  # fmt: skip
def accelerate_loop() -> Loop:
    return prepared()


@row("accelerate: a seedable sampler", "position", "seeds of samplers", imports=ACCELERATE, steps=16, first_kill=9,
     note="saved after updates only")  # fmt: skip
def accelerate_seedable() -> Loop:
    found = prepared(use_seedable_sampler=True)
    found.resumed = lambda: setattr(found.loader.batch_sampler.sampler, "initial_seed", 99)  # no set_seed this time
    return found


@row(
    "accelerate: a list of optimizers in one whose state_dict() is a list", "optimizers' own state", imports=ACCELERATE
)
def accelerate_list() -> Loop:
    from accelerate import Accelerator

    from .rows_wrappers import Listed

    accelerator = Accelerator(cpu=True)
    model = Net()
    model, optimizer = accelerator.prepare(model, Listed(model))
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row(
    "accelerate: use_stateful_dataloader=True", imports=(*ACCELERATE, *TORCHDATA),
    refused="accelerate's DataLoaderShard fetches one batch more than the StatefulDataLoader in it says",
)  # fmt: skip
def accelerate_stateful() -> Loop:
    return prepared(use_stateful_dataloader=True)


@row(
    "Lightning's Fabric: setup, setup_dataloaders, backward",
    "gate", "generators", "position", "optimizer state", imports=FABRIC,
)  # fmt: skip
def fabric_loop() -> Loop:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = Net(nn.Dropout(0.2), nn.BatchNorm1d(16))
    model, optimizer = fabric.setup(model, O.AdamW(model.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(DataLoader(dataset(), 4, shuffle=True))

    def train(batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Loop({"model": model, "optim": optimizer}, train, loader)
