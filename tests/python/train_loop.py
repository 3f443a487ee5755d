"""A training run for the tests: one process, or one rank under torchrun or srun. Prints nothing; reports into --out.

OUT/loss.<rank>: "step loss" of each step of each attempt. OUT/final.<rank>: SHA-256 of all state at the end.
OUT/restored.<rank>: "step source" of each attempt. Without --save nothing is saved: the undisturbed run.
OUT/whole.pt: with --fsdp, the whole parameters and moments at the end by their names in the image.
"""

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import time
import signal

import ckptd
import numpy as np
import torch
import torch._dynamo  # else each optimizer imports it when it is made
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    """Dropout, BatchNorm statistics, tied weights, a frozen layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.drop(self.norm(torch.relu(self.frozen(self.embed(x))))))


def parsed(arguments):
    """With rank and world size, as torchrun or srun tell them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--die-at", type=int, default=0, help="SIGKILL after this step, once")
    parser.add_argument("--die-rank", type=int, default=0)
    parser.add_argument("--wait", default="captured", choices=["captured", "durable", "none"], help="before dying")
    parser.add_argument("--connect-timeout", type=float, default=10)
    parser.add_argument("--fsdp", action="store_true", help="fully_shard instead of DDP")
    parser.add_argument("--meet", default="env://", help="where the ranks meet")
    args = parser.parse_args(arguments)
    slurm = os.environ.get("SLURM_PROCID"), os.environ.get("SLURM_STEP_NUM_TASKS")
    args.rank = int(os.environ.get("RANK", slurm[0] or 0))
    args.world = int(os.environ.get("WORLD_SIZE", slurm[1] or 1))
    return args


def sharded(net, world):
    """Rows of 32 and 16 in equal shards; one parameter of one number, of which most ranks have nothing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net.gain = nn.Parameter(torch.ones(1))
    net.register_forward_hook(lambda module, args, out: out * module.gain)
    return fully_shard(net, mesh=init_device_mesh("cpu", (world,)))


def whole(net, optimizer):
    """Gathered on all ranks: parameters and moments, as stock readers of the checkpoint name them."""
    found = {}
    for name, parameter in net.named_parameters():
        found[f"model.{name}"] = parameter.detach().full_tensor()
        for key, value in optimizer.state[parameter].items():
            found[f"optim.state.{name}.{key}"] = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found


def build(args):
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    net = Net()
    if args.world > 1:
        torch.distributed.init_process_group("gloo", init_method=args.meet, rank=args.rank, world_size=args.world)
        net = sharded(net, args.world) if args.fsdp else nn.parallel.DistributedDataParallel(net)
    torch.manual_seed(50 + args.rank)  # dropout differs by rank
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 9, 9], gamma=0.5)
    data = TensorDataset(torch.randint(32, (44,), generator=torch.Generator().manual_seed(1)))
    sampler = DistributedSampler(data, args.world, args.rank) if args.world > 1 else None
    loader = DataLoader(data, 4, shuffle=sampler is None, sampler=sampler, num_workers=args.workers)
    return net, optimizer, scheduler, ckptd.batches(loader, seed=3)


def train_one(net, optimizer, scheduler, ema, batch):
    x = batch[0]
    loss = nn.functional.cross_entropy(net(x), (x + 1) % 32) * (1 + 0.01 * random.random() + 0.01 * np.random.rand())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    for name, parameter in net.named_parameters():
        ema[name].lerp_(parameter.detach(), 0.1)
    return loss


def digest(net, optimizer, scheduler, ema):
    tensors = [*net.state_dict().values(), *ema.values()]
    for state in optimizer.state.values():
        tensors += [state[key] for key in sorted(state)]
    tensors += [torch.get_rng_state(), torch.tensor(scheduler.get_last_lr(), dtype=torch.float64)]
    tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    return hashlib.sha256(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def settled(args, save):
    """Waits for each save, since steps here are far shorter than a flush; unless the test is about not waiting."""
    if save is not None and args.wait != "none" and save.state != "dropped":
        with contextlib.suppress(ckptd.SaveError):  # the other rank had no memory for this one yet
            save.durable(30)
    if save is not None and save.dropped_because == "LAYOUT_PREPARING":
        time.sleep(0.2)  # a busy machine may take longer for the memory than for all of these steps
    return save


def die(args, step, last):
    if not args.die_at or step != args.die_at or args.die_rank != args.rank or os.path.exists(f"{args.out}/died"):
        return
    if last is not None and args.wait != "none":
        assert getattr(last, args.wait)(30), last
    open(f"{args.out}/died", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)


def main(arguments=None):
    """The command line's, if there are none."""
    args = parsed(arguments)
    net, optimizer, scheduler, data = build(args)
    ema = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    start, ck, last = 0, None, None
    if args.save:
        state = {"model": net, "optim": optimizer, "sched": scheduler, "data": data, "ema": ema}
        ck = ckptd.Checkpointer(state, job="loop", every=args.every)
        start = ck.restore(timeout=60, connect_timeout=args.connect_timeout)
        with open(f"{args.out}/restored.{args.rank}", "a") as file:
            print(start, ck.restored.source, file=file)
    with open(f"{args.out}/loss.{args.rank}", "a", buffering=1) as losses:
        for step, batch in zip(range(start, args.steps), data):
            print(step + 1, train_one(net, optimizer, scheduler, ema, batch).item().hex(), file=losses)
            if ck:
                last = settled(args, ck.step(step + 1)) or last
            die(args, step + 1, last)
    if ck:
        assert ck.close(60) or last.state == "dropped"
    if args.fsdp:
        gathered = whole(net, optimizer)
        torch.save(gathered, f"{args.out}/whole.pt") if args.rank == 0 else None
    with open(f"{args.out}/final.{args.rank}", "w") as file:
        file.write(digest(net, optimizer, scheduler, ema))
    if args.world > 1:
        torch.distributed.destroy_process_group()
        # DDP and the mesh of FSDP hold the group beyond that (torch 2.10; pytorch/pytorch#190489), so gloo's threads
        # live on: one that drops its last tensor while Python ends makes it an end by SIGABRT.
        os._exit(0)


def forked(out, arguments, environment):
    """In a child of a warm process: as if it had been started with this."""
    os.environ.clear()
    os.environ.update(environment)
    with open(f"{out}/said", "ab") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    multiprocessing.set_start_method("fork", force=True)  # of a loader's workers, as in any other process
    torch.set_num_threads(1)  # OMP_NUM_THREADS is read when torch is loaded
    main(["--out", str(out), *arguments])


if __name__ == "__main__":
    main()
