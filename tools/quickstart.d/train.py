"""One training run with ckptd, 1 rank or N under torchrun: what a user would write, plus the reports for the scenes.

Reports: OUT/loss.<rank> gets a line "step loss" for each step, appended by each attempt; OUT/final.<rank>.json the
SHA-256 of every tensor at the end; OUT/events.<rank> what happened when, one JSON object a line. Without --job nothing
is saved: that is the undisturbed run.
"""

import argparse
import hashlib
import json
import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import ckptd
from model import GPT, Windows

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of the reports")
    parser.add_argument("--job", help="name of the job; without it nothing is saved or restored")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=5, help="save each so many steps")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--die-at", type=int, default=0, help="SIGKILL oneself as soon as the save of this step began")
    parser.add_argument("--die-rank", type=int, default=0)
    parser.add_argument("--stop-rank", type=int, default=-1,
                        help="once a step is protected, this rank stops (SIGSTOP) in the middle of its next save")
    parser.add_argument("--stop-behind", action="store_true", help="once an older step is durable, too")
    parser.add_argument("--pause-at", type=int, default=0, help="after this step wait until OUT/go exists")
    return parser.parse_args()


class Report:
    def __init__(self, out):
        self.out = out
        self.losses = open(f"{out}/loss.{RANK}", "a", buffering=1)
        self.events = open(f"{out}/events.{RANK}", "a", buffering=1)

    def loss(self, step, loss):
        print(f"{step} {loss.item().hex()}", file=self.losses)

    def event(self, what, **more):
        print(json.dumps({"event": what, "time": time.time(), "pid": os.getpid(), **more}), file=self.events)

    def final(self, tensors):
        digests = {name: hashlib.sha256(t.detach().contiguous().numpy().tobytes()).hexdigest() for name, t in tensors}
        with open(f"{self.out}/final.{RANK}.json", "w") as file:
            json.dump(digests, file)


def build(args):
    torch.manual_seed(1234 + RANK)  # ranks drop out differently; DDP spreads rank 0's parameters
    model = GPT()
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")
        # Over more than two ranks a sum depends on where DDP's buckets begin, and DDP moves them after the first backward
        # pass of a process, also of one that resumed; so they stay (client/python/README.md, "ddp").
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=WORLD > 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    windows = Windows()
    sampler = DistributedSampler(windows, WORLD, RANK) if WORLD > 1 else None
    loader = DataLoader(windows, batch_size=args.batch, shuffle=sampler is None, sampler=sampler, drop_last=True)
    return model, optimizer, scheduler, loader


def train_one(model, optimizer, scheduler, batch):
    x, y = batch
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return loss.detach()


def all_tensors(model, optimizer, scheduler):
    yield from model.state_dict().items()
    for position, state in optimizer.state_dict()["state"].items():
        yield from ((f"optim.{position}.{key}", value) for key, value in state.items())
    yield "lr", torch.tensor(scheduler.get_last_lr(), dtype=torch.float64)
    yield "generator", torch.get_rng_state()


def after_step(args, report, step, save):
    """The moments the scenes need: a death in the middle of a capture, and a wait for the operator."""
    if save is not None:
        report.event("save", step=step, state=str(save.state))
    if step == args.die_at and RANK == args.die_rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        report.event("killed", step=step, state=str(save.state) if save else "no save")
        os.kill(os.getpid(), signal.SIGKILL)
    if step == args.pause_at and not os.path.exists(f"{args.out}/go"):
        report.event("paused", step=step)
        while not os.path.exists(f"{args.out}/go"):
            time.sleep(0.02)


def stop_in_save(args, report, step, saves):
    """For who loses a node in the middle of a save: this rank stands still there, as soon as there is what to go back to.

    `saves`: all of this attempt, the last has just begun. It waits for each to be protected; the others then wait for it.
    """
    states = [str(save.state) for save in saves]
    ready = states[:-1] and states[-2] == "protected" and (not args.stop_behind or "durable" in states[:-2])
    if ready:
        report.event("stopped", step=step, state=states[-1], protected=saves[-2].step)
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        saves[-1].protected(60)
    except ckptd.SaveError as dropped:  # the first ones: its memory is still being prepared
        print(f"step {step}: {dropped}", flush=True)


def main():
    args = arguments()
    torch.use_deterministic_algorithms(True)
    os.makedirs(args.out, exist_ok=True)
    report = Report(args.out)
    model, optimizer, scheduler, loader = build(args)
    data = ckptd.batches(loader, seed=0)
    ck, start = None, 0
    if args.job:
        ck = ckptd.Checkpointer({"model": model, "optim": optimizer, "sched": scheduler, "data": data},
                                job=args.job, every=args.every)
        began = time.time()
        start = ck.restore()
        report.event("restored", step=start, seconds=time.time() - began, source=str(ck.restored.source),
                     skipped=str(ck.restored.skipped))
    saves = []
    for step, batch in zip(range(start, args.steps), data):
        report.loss(step + 1, train_one(model, optimizer, scheduler, batch))
        if step == start:
            report.event("first step", step=step + 1)
        if ck:
            save = ck.step(step + 1)
            after_step(args, report, step + 1, save)
            if save is not None and RANK == args.stop_rank:
                saves.append(save)
                stop_in_save(args, report, step + 1, saves)
    report.event("done", durable=ck.close() if ck else None)
    report.final(all_tensors(model, optimizer, scheduler))


main()
