"""A training run whose model and moments live on the host device (host_device.py). Reports into --out.

OUT/restored: "step source" of each attempt. OUT/final: SHA-256 of all state at the end. OUT/gates: seconds that the
thread stood in step() and before each update, for steps after a save.
"""

import argparse
import contextlib
import gc
import hashlib
import os
import signal
import sys
import time

import ckptd
import torch
import torch._dynamo  # the first step of an optimizer imports it: two seconds
from ckptd import device
from copiers import kill_copiers
from host_device import Gpu, build_of_environment
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook


# Where a rank dies at --die-at when no save is due: behind step(), inside the update, before the GPU has come so far.
DEATHS = ("between", "updating", "queued", "exception", "handled")


def parsed(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--die-at", type=int, default=0, help="SIGKILL after this step, once")
    parser.add_argument("--die", default="captured", choices=["captured", "capturing", "durable", *DEATHS])
    parser.add_argument("--slow", type=int, default=0, help="microseconds that a copy takes for each MiB")
    parser.add_argument("--forget-stream", action="store_true", help="the gate holds another stream than updates use")
    parser.add_argument("--path", default="push", choices=["push", "pull", "auto"])
    parser.add_argument("--kill-copier-at", type=int, default=0, help="SIGKILL to it in the capture of this step")
    parser.add_argument("--no-selfcheck", action="store_true")
    parser.add_argument("--postmortem", action="store_true")
    return parser.parse_args(arguments)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 512)
        self.norm = nn.BatchNorm1d(512)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(512, 64)

    def forward(self, x):
        return self.down(self.drop(torch.relu(self.norm(self.up(x)))))


def digest(net, optimizer):
    found = hashlib.sha256()
    for tensor in [*net.parameters(), *net.buffers()]:
        found.update(tensor.detach().numpy().tobytes())
    for held in optimizer.state.values():
        for key in sorted(held):
            found.update(held[key].numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.hexdigest()


def say(args, name, text):
    with open(os.path.join(args.out, name), "a") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def die(args, save):
    if args.die == "captured":
        assert save.captured(20), save
    elif args.die == "durable":
        assert save.durable(20), save
    os.kill(os.getpid(), signal.SIGKILL)


def main(arguments):
    args = parsed(arguments)
    torch.set_num_threads(1)
    gpu = Gpu(build_of_environment(), shareable=args.postmortem)
    torch.manual_seed(0)
    net = Net()
    gpu.take(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    checkpointer, start = None, 0
    if args.save:
        selfcheck = "off" if args.no_selfcheck else "first"
        checkpointer = ckptd.Checkpointer(
            {"model": net, "optim": optimizer}, job="gpu", every=args.every, selfcheck=selfcheck,
            gpu_path=args.path, postmortem=args.postmortem,
        )
        start = checkpointer.restore()
        say(args, "restored", f"{start} {checkpointer.restored.source}")
    gpu.updates_in_order()
    gpu.forwards_in_order(net)
    if args.forget_stream:
        forget_stream(gpu)
    if args.slow:
        gpu.slow(args.slow)
    gpu.take_state(optimizer)
    saves = []
    for step in range(start, args.steps):
        generator = torch.Generator().manual_seed(step)
        loss = net(torch.randn(32, 64, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        dies = step + 1 == args.die_at and not start and args.die in DEATHS
        if dies and args.die == "updating":
            register_optimizer_step_pre_hook(lambda *_: (gpu.sync(), os.kill(os.getpid(), signal.SIGKILL)))
        optimizer.step()
        gpu.take_state(optimizer)
        if checkpointer is None:
            continue
        began = time.monotonic()
        if dies and args.die == "queued":
            gpu.stall()
        save = checkpointer.step(step + 1)
        if dies and args.die != "queued":
            gpu.sync()  # the GPU has come to the end of the step
        if dies and args.die in ("exception", "handled"):
            raise RuntimeError("as when a collective fails")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == start:
            wait_for_memory(checkpointer)
            wait_for_path(args, checkpointer)
            if args.postmortem:
                say(args, "rescue", wait_for_rescue(checkpointer) or "armed")
        if save is not None and step + 1 == args.kill_copier_at:
            kill_copiers()
        if save is None:
            continue
        if args.die == "capturing" and args.postmortem and step + 1 == args.die_at and not start:
            gpu.sync()  # the GPU has told the copier to begin; a process that dies before has nothing to be finished
        checkpointer.gate()
        say(args, "gates", f"{time.monotonic() - began:.6f} {save.state} {save.dropped_because}")
        if step + 1 == args.die_at and not start:
            die(args, save)
        saves.append(save)
        if args.slow and not args.forget_stream:
            with contextlib.suppress(*([ckptd.SaveError] if args.kill_copier_at else [])):
                # So that the next one does not find it still being copied, or its slot taken by a slow flush.
                (save.durable if args.kill_copier_at else save.captured)(20)
    if checkpointer is not None:
        with contextlib.suppress(ckptd.SaveError):
            saves[0].captured(20)
        say(args, "first", str(saves[0].dropped_because))
        with contextlib.suppress(ckptd.SaveError):
            saves[-1].captured(20)  # a pull counts when it has ended
        info = checkpointer._session.info()
        say(args, "pulled", f"{info.pulled} {info.saves} {info.path_why.decode()}")
        say(args, "pinned", str(checkpointer._session.info().pinned_bytes))
        say(args, "last", "durable" if checkpointer.close(30) else "not durable")
        say(args, "left", f"{gpu.counts().pinned_ranges} {gpu.counts().streams} {gpu.counts().events}")
    gpu.sync()
    say(args, "final", digest(net, optimizer))


def wait_for_memory(checkpointer):
    """Moments came with the first update, and a new layout with them: no save is dropped because of it."""
    deadline = time.monotonic() + 20
    while not checkpointer._session.info().ready and time.monotonic() < deadline:
        time.sleep(0.005)


def wait_for_path(args, checkpointer):
    """Until the copier is prepared for this layout."""
    deadline = time.monotonic() + 20
    while args.path != "push" and "CKPTD_NO_PATH_WAIT" not in os.environ and not checkpointer._session.info().gpu_path:
        assert time.monotonic() < deadline, checkpointer._session.info().path_why
        time.sleep(0.005)


def wait_for_rescue(checkpointer):
    """Until the copier holds this state's memory; a step behind it is published."""
    deadline = time.monotonic() + 20
    while (why := checkpointer._session.info().rescue_why) == b"a copier is being prepared":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return why.decode()


def forget_stream(gpu):
    """As a trainer that computes on a side stream which nobody told of."""
    told = gpu.stream.value
    gpu.stream = gpu.new_stream()
    device.current_streams = lambda ordinals: [(number, told) for number in ordinals]


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RuntimeError:
        if "handled" not in sys.argv:
            raise
        gc.collect()  # what main() had is garbage by now
        sys.exit(1)
