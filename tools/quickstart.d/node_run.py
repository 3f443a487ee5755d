"""A training of one rank a node, as torchrun on each node would start it."""

import sys
import time

from runs import Failed, Run, wait_for

PATIENCE = 5  # seconds that the other ranks get to notice that one is gone, before they are killed


class NodesRun(Run):
    """One trainer process a rank, each on the node that `where` says, as torchrun on each node would start it."""

    def __init__(self, out, ranks, cluster, job, steps):
        super().__init__(out, ranks, None, job)
        self.cluster, self.steps = cluster, steps
        self.where, self.processes = [], []

    def launch(self, where, *extra):
        """Rank i goes to the node where[i]."""
        self.where = where
        network = self.cluster.network
        port = network.port()
        self.processes = []
        for rank, node in enumerate(where):
            environment = {
                **self.environment(node),
                "RANK": str(rank), "WORLD_SIZE": str(self.ranks), "LOCAL_RANK": str(where[:rank].count(node)),
                "MASTER_ADDR": where[0].address, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": network.interface,
            }  # fmt: skip
            command = [*node.prefix, sys.executable, *self.script(*self.steps, *extra)]
            self.processes.append(self.start(command, environment, f"trainer-{rank}.log"))
        return self

    def check(self):
        for rank, process in enumerate(self.processes):
            if process.poll():
                raise Failed(f"rank {rank} ended with {process.returncode}, see {self.out}/trainer-{rank}.log")
        if self.ended():
            raise Failed(f"the training ended before it was expected to, see {self.out}")

    def ended(self):
        return all(process.poll() is not None for process in self.processes)

    def finish(self, seconds=600):
        def all_done():
            if self.ended():
                return all(process.returncode == 0 for process in self.processes) or self.check()
            for process in self.processes:
                if process.poll():
                    self.check()

        wait_for(f"the training to end (see {self.out}/trainer-*.log)", seconds, all_done, every=0.05)
        return self

    def kill(self, ranks=None):
        chosen = self.processes if ranks is None else [self.processes[rank] for rank in ranks]
        for process in chosen:
            if process.poll() is None:
                process.kill()  # it was started without a shell: `ip netns exec` has become it
        for process in chosen:
            process.wait()

    def stop_rest(self):
        """What torchrun does when a rank is gone: the others end by themselves (how many did), or are made to."""
        deadline = time.monotonic() + PATIENCE
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        alone = sum(process.poll() is not None for process in self.processes)
        self.kill()
        return alone

    def every_event(self, name, attempt):
        """The event of each rank in this attempt."""
        self.wait_event(name, attempt)
        return [self.events(name, rank)[attempt - 1] for rank in range(self.ranks)]
