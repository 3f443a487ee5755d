"""Several nodes on one machine: a training of one rank a node loses nodes, and goes on from what others hold in memory.

Each run must equal an undisturbed one bit for bit. usage: node_scenes.py WORK_FOLDER [--nodes N] [--only NAME]...
"""

import argparse
import json
import shutil
import signal
import sys
import time
from pathlib import Path

from node_run import PATIENCE, NodesRun
from nodes import DECIDE_SECONDS, Cluster, Loopback, Namespaces
from report import Row, print_table
from runs import BUILD, Failed, say, wait_for
from scenes import JOB, judge, undisturbed

NEVER = 1_000_000  # durability.flush_every: nothing is written in so short a run, but the last step at its end
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NodeStage:
    """What a scene gets: a cluster with a spare, a run, the undisturbed run to compare with, and the row it fills."""

    def __init__(self, title, cluster, reference, steps, parity=False):
        self.by = "parity" if parity else "replica"  # where a lost rank's snapshot comes from
        self.kept = "the nodes have parity of all ranks' snapshots" if parity else (
            "each rank's snapshot is in the memory of two nodes")  # fmt: skip
        self.row = Row(title)
        self.cluster, self.reference = cluster, reference
        self.spare = cluster.nodes[-1]
        self.run = NodesRun(cluster.folder / "out", reference.ranks, cluster, JOB, steps)

    def train_into_a_save(self, rank, *extra):
        """Trains until this rank stands still in the middle of a save, a step before it being protected: that event."""
        say(f"  training starts: {self.run.ranks} ranks, one a node")
        self.run.launch(self.cluster.nodes[: self.run.ranks], "--stop-rank", str(rank), *extra)

        def stopped():
            self.run.check()
            return self.run.events("stopped", rank)

        at = wait_for(f"rank {rank} to be in a save with a step protected before it", 300, stopped)[0]
        say(f"  step {at['protected']} is protected: {self.kept}; "
            f"the save of step {at['step']} is {at['state']}")  # fmt: skip
        return at

    def show_status(self):
        """Of node n1, where rank 0 trains: its table, and what its -o json calls protected."""
        first = self.cluster.nodes[0]
        say(f"  ckptctl status on {first.name} says:")
        print(first.ctl("status", JOB), flush=True)
        for step in first.status()["jobs"][0]["steps"]:
            level = ", ".join(word for word in ("protected", "durable") if step[word]) or "neither protected nor durable"
            say(f"  and with -o json: step {step['step']}: {level}; here in {', '.join(step['sources'])}")

    def lose(self, ranks):
        """The nodes of these ranks are gone with all they had; the job ends. (step, when) of that."""
        run, died = self.run, time.time()
        nodes = [run.where[rank] for rank in ranks]
        for node in nodes:
            node.kill()  # agent and trainer together, as the power does it
        run.kill(ranks)
        for node in nodes:
            node.lose()
        say(f"  SIGKILL to all of {', '.join(node.name for node in nodes)}: trainer, agent; memory, disk, network are gone")
        rest = run.ranks - len(ranks)
        alone = run.stop_rest() - len(ranks)
        killed = f", {rest - alone} were killed, as torchrun does" if alone < rest else ""
        say(f"  the job ends: {alone} of the {rest} other ranks by themselves (gloo lost its connections){killed}")
        return min(run.last_step(rank) for rank in range(run.ranks)), died

    def replace(self, ranks):
        """The spare takes these ranks."""
        where = [self.spare if rank in ranks else node for rank, node in enumerate(self.run.where)]
        took = ", ".join(f"rank {rank}" for rank in sorted(ranks))
        say(f"  the spare {self.spare.name} (its memory is empty) takes {took}; starting the job again")
        self.run.launch(where)

    def resume(self, died):
        """Waits until the next attempt trains, fills the row with what it says: the source of each rank."""
        restored = self.run.every_event("restored", 2)
        first = self.run.every_event("first step", 2)
        step, sources = restored[0]["step"], [event["source"] for event in restored]
        self.row.resumed = f"step {step}, {by_source(sources)}"
        self.row.lost = died[0] - step
        self.row.seconds = max(event["time"] for event in first) - died[1]
        self.row.restore_seconds = max(event["seconds"] for event in restored)
        say(f"  goes on from step {step} ({by_source(sources)}), {self.row.lost} steps are done again")
        return step, sources, restored[0]["skipped"]


    def why_skipped(self):
        """Sentences of the newest attempt's decision, which the coordinator writes to storage; ck.restored has codes."""
        newest = max((self.cluster.storage / JOB / "attempts").glob("a*.decided.json"))
        skipped = json.loads(newest.read_text()).get("skipped", [])
        return [f"step {each['snapshot']['step']}: {each['reason']}" for each in skipped]


def by_source(sources):
    """ "replica: rank 3; region: ranks 0 1 2"."""
    ranks = {}
    for rank, source in enumerate(sources):
        ranks.setdefault(source, []).append(str(rank))
    told = sorted(ranks.items(), key=lambda item: item[0] == "region")  # what came from elsewhere first
    return "; ".join(f"{source}: rank{'s' * (len(some) > 1)} {' '.join(some)}" for source, some in told)


def lose_one(stage, rank):
    say("  storage cannot help: flush_every is so high that nothing is written")
    at = stage.train_into_a_save(rank)
    stage.show_status()
    died = stage.lose([rank])
    if stage.spare.steps(JOB, committed=False):
        raise Failed(f"steps {stage.spare.steps(JOB, committed=False)} are on storage: memory proves nothing here")
    stage.replace({rank})
    step, sources, _ = stage.resume(died)
    if step < at["protected"]:
        raise Failed(f"step {at['protected']} was protected, and it went on from {step}")
    wanted = [stage.by if each == rank else "region" for each in range(stage.run.ranks)]
    if sources != wanted:
        raise Failed(f"sources are {by_source(sources)}, not {by_source(wanted)}")


def node_lost(stage):
    lose_one(stage, stage.run.ranks - 1)


def coordinator_lost(stage):
    lose_one(stage, 0)


def too_many_lost(stage):
    rank = stage.run.ranks - 1
    say("  storage gets every second step, so that memory is ahead of it")
    at = stage.train_into_a_save(rank, "--stop-behind")
    owner = stage.run.where[rank]
    holder = stage.cluster.holder(JOB, rank, owner)
    say(f"  rank {rank} runs on {owner.name}, its copy is on {holder.name}: both are lost, one more than is protected")
    lost = {rank, stage.run.where.index(holder)}
    fall_back(stage, at, rank, lost)


def fall_back(stage, at, rank, lost):
    """All of `lost` go, more than is protected: everybody goes on from storage."""
    stage.show_status()
    died = stage.lose(sorted(lost))
    durable = stage.spare.steps(JOB)
    say(f"  on storage are steps {durable}; of step {at['protected']} rank {rank}'s part is nowhere any more")
    stage.replace(lost)
    step, sources, skipped = stage.resume(died)
    say(f"  ck.restored says it skipped: {skipped}")
    for line in stage.why_skipped():
        say(f"  why, by the decision that the coordinator wrote down: {line}")
    if step != max(durable) or set(sources) - {"storage", "region", "replica"} or "storage" not in sources:
        raise Failed(f"it went on from step {step} ({by_source(sources)}), not from step {max(durable)} on storage")


def too_many_for_parity(stage):
    rank = stage.run.ranks - 1
    say("  storage gets every second step, so that memory is ahead of it")
    at = stage.train_into_a_save(rank, "--stop-behind")
    say(f"  any one node may be lost; now ranks {rank - 1} and {rank} are, with their nodes")
    fall_back(stage, at, rank, {rank - 1, rank})


SCENES = [
    ("node-lost", node_lost, NEVER, False, "a node lost in a save"),
    ("coordinator-lost", coordinator_lost, NEVER, False, "rank 0's node lost in a save"),
    ("too-many-lost", too_many_lost, 2, False, "both holders of a rank lost"),
    ("parity-lost", node_lost, NEVER, True, "parity: a node lost in a save"),
    ("parity-too-many", too_many_for_parity, 2, True, "parity: two nodes lost"),
]


def make_network(args):
    return Loopback() if args.no_namespaces else Namespaces()


def play(args, name, scene, flush_every, parity, title, reference):
    say(f"Scene {name}: {title}")
    settings = {"durability.flush_every": flush_every}
    if parity:
        settings |= {"peers.parity": 1, "peers.data": args.nodes - 1}
    try:
        with Cluster(args.work / name, args.nodes + 1, make_network(args), settings) as cluster:
            cluster.describe()
            stage = NodeStage(f"{name}: {title}", cluster, reference, args.steps, parity)
            judge(stage, lambda: scene(stage))
            return stage.row
    except Failed as failed:  # of the nodes themselves
        say(f"  FAILED: {failed}")
        return Row(title, verdict=f"FAILED: {failed}")


def keep(args):
    """Leaves the nodes running with one finished job, and says how to look at them."""
    with Cluster(args.work / "kept", args.nodes + 1, make_network(args), {}) as cluster:
        cluster.describe()
        run = NodesRun(cluster.folder / "out", args.nodes, cluster, JOB, args.steps)
        try:
            run.launch(cluster.nodes[: args.nodes]).finish()
        finally:
            run.kill()
        cluster.kept = True
    print(f"\nThe nodes run on; job {JOB} has a checkpoint in {cluster.storage} and in their memory. Look at them:\n")
    for node in cluster.nodes:
        print(f"  {BUILD}/bin/ckptctl status --agent {node.socket.parent}/admin.sock    # {node.name}, {node.address}")
    print(f"  {cluster.network.look('n1')}")
    print(f"  tail -f {cluster.folder}/n*/agent.log")
    print("\nTo end them:\n")
    print(f"  kill {' '.join(str(node.process.pid) for node in cluster.nodes)}; sleep 2")
    for line in cluster.network.end():
        print(f"  {line}")
    folders = [str(folder) for node in cluster.nodes for folder in (node.region, node.socket.parent)]
    print(f"  rm -r {' '.join(folders)} {args.work}\n", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--nodes", type=int, default=4, choices=(2, 4, 8))
    parser.add_argument("--only", action="append", choices=[scene[0] for scene in SCENES])
    parser.add_argument("--no-namespaces", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=3)
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.steps = ("--steps", str(args.steps), "--every", str(args.every))
    return args


def leave(number, _):
    """Of a signal: everything is removed on the way out, and a second Ctrl-C must not leave half of it."""
    for each in ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


class Interrupted(BaseException):
    """By the signal of this number."""


def main():
    for number in ENDINGS:
        signal.signal(number, leave)
    args = arguments()
    shutil.rmtree(args.work, ignore_errors=True)
    try:
        with make_network(args):  # before minutes are spent
            pass
        reference = undisturbed(args.work, args.nodes, *args.steps)
        rows = [play(args, *scene, reference) for scene in SCENES if not args.only or scene[0] in args.only]
        good = print_table(rows)
        print("Seconds to resume: from the death to the first new step of every rank. Most of it: up to "
              f"{PATIENCE} until the other\nranks have ended, Python importing torch, and {DECIDE_SECONDS} in which the "
              "lost agents do not answer (agent.decide_timeout).\n", flush=True)  # fmt: skip
        if args.keep:
            keep(args)
        return 0 if good else 1
    except Failed as failed:
        print(f"FAILED: {failed}", file=sys.stderr, flush=True)
        return 1
    except Interrupted as by:
        print("interrupted; everything was removed", file=sys.stderr, flush=True)
        return 128 + by.args[0]


if __name__ == "__main__":
    sys.exit(main())
