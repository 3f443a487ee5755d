"""One visit: a job that trains, saves by one way and ends; and another that restores what it saved."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .environments import interpreter
from .limits import Disk, Memcpy, drop_caches
from .ranks import Failed, Ranks, Wrong
from .ways import WAYS, Way
from .workloads import Workload

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from private_agent import ROOT, Node, PrivateAgent, cluster  # noqa: E402

_SHARED_MEMORY = pathlib.Path("/dev/shm")
_DLROVER_SOCKETS = pathlib.Path("/tmp/ckpt_sock")
_FEWEST_STEPS, _MOST_STEPS = 2, 6


@dataclass(frozen=True)
class Settings:
    """iterations: of the arithmetic of a step, on each of `threads` threads. deadline: seconds for one visit.

    system_caches: drop those of the whole machine before a restore, not only of the saved files. tool: of the disk's
    limit.
    """

    folder: pathlib.Path
    build: pathlib.Path
    iterations: int
    threads: int
    deadline: float
    tool: str
    system_caches: bool


class Visit:
    """Of `workload` by the way `name`. A context manager: nothing of it is left behind."""

    def __init__(self, name: str, workload: Workload, settings: Settings) -> None:
        self._way: Way = WAYS[name]
        self._name, self._workload, self._settings = name, workload, settings
        self._until = time.monotonic() + settings.deadline
        self._began = time.time()
        self._folder = settings.folder / f"{name}-{time.monotonic_ns()}"
        self._storage = self._folder / "storage"
        self._run = 0

    def __enter__(self) -> Visit:
        self._storage.mkdir(parents=True)
        (self._folder / "tmp").mkdir()
        self._log = open(self._folder / "log", "ab")
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        _sweep(self._folder.name, self._began)

    def log(self) -> str:
        """What the ranks said."""
        return (self._folder / "log").read_text(errors="replace")

    def figures(self, memcpy: Memcpy, disk: Disk) -> dict[str, Any]:
        """Seconds, of the job: the slowest rank's. NotInstalled, Failed or Wrong."""
        python = interpreter(self._way.requirements)
        with self._agents() as sockets, Ranks(self._until) as ranks:
            version = ranks.start(python, *self._ranks(sockets, False), self._log)[0]["version"]
            steps = ranks.ask("warm")[0]["steps"]
            os.sync()
            limits = {**disk.seconds(), "memcpy": memcpy.seconds()}
            found = ranks.ask("measure", steps=min(max(steps, _FEWEST_STEPS), _MOST_STEPS))
            ranks.ask("close")
        restored = self._restore(python, found[0]["saved"]) if self._way.durable else {"restore": None}
        return {**combined(found, self._way.durable), **restored, **limits, "version": version}

    def _restore(self, python: pathlib.Path, saved: int) -> dict[str, Any]:
        """By fresh processes, whose libraries are in memory when the caches are dropped, and a fresh agent."""
        with self._agents() as sockets, Ranks(self._until) as ranks:
            ranks.start(python, *self._ranks(sockets, True), self._log)
            caches = drop_caches(self._storage, self._settings.system_caches)
            answers = ranks.ask("restore", saved=saved)
        wrong = [one["wrong"] for one in answers if one["wrong"]]
        if wrong:
            raise Wrong(f"{wrong[0]} was restored otherwise than it was saved after {saved} updates")
        return {"restore": max(each["restore"] for each in answers), "caches": caches}

    @contextlib.contextmanager
    def _agents(self) -> Iterator[list[str]]:
        """Sockets of the nodes' agents, which have empty regions; "" for a peer."""
        if not self._way.ours:
            yield [""]
            return
        nodes = cluster(self._way.nodes) if self._way.nodes > 1 else [None]
        with contextlib.ExitStack() as running:
            sockets = []
            for node in nodes:
                agent = self._start_agent(node)
                running.callback(agent.close)
                sockets.append(agent.socket)
            yield sockets

    def _start_agent(self, node: Node | None) -> PrivateAgent:
        """Failed with its log when it does not start."""
        try:
            return PrivateAgent(self._settings.build, self._storage, node)
        except (SystemExit, OSError) as refused:
            if isinstance(refused, SystemExit) and not isinstance(refused.code, str):
                raise  # a signal
            raise Failed(f"the agent does not start: {str(refused).strip().splitlines()[-1]}") from refused

    def _ranks(self, sockets: list[str], restoring: bool) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
        """What each rank is told, and its environment."""
        ports, workload, settings = _free_ports(2), self._workload, self._settings
        self._run += 1
        share = min(1.0, (os.cpu_count() or 1) / (workload.ranks * settings.threads))  # else a step takes longer
        shared = {"way": self._name, "ranks": workload.ranks, "folder": str(self._storage),
                  "ports": ports, "tensors": workload.tensors, "elements": workload.elements, "restoring": restoring,
                  "iterations": max(round(settings.iterations * share), 1), "threads": settings.threads}  # fmt: skip
        specs = [{**shared, "rank": rank, "socket": sockets[rank * len(sockets) // workload.ranks]}
                 for rank in range(workload.ranks)]  # fmt: skip
        return specs, [self._environment(rank, ports[0]) for rank in range(workload.ranks)]

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        """As torchrun sets it. The run's id names DLRover's sockets and shared memory."""
        ranks = str(self._workload.ranks)
        return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks,
                "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": f"{self._folder.name}-{self._run}", "OMP_NUM_THREADS": "1",
                "TMPDIR": str(self._folder / "tmp"), "PYTHONPATH": str(ROOT / "client" / "python"),
                "CKPTD_LIB": str(self._settings.build / "lib" / "libckpt.so")}  # fmt: skip


def combined(ranks: list[dict[str, Any]], durable: bool) -> dict[str, Any]:
    """Figures of the job: what its slowest rank took.

    lost: of the steps from the call until it is durable, more than as many undisturbed ones right before took. drift:
    what would be lost by that count if nothing were saved: the undisturbed steps after, against those before.
    """
    lost = max(one["wall"] - one["steps"] * one["before"] for one in ranks)
    drift = statistics.fmean(one["steps"] * (one["after"] - one["before"]) for one in ranks)
    written, done = (max(one[name] for one in ranks) for name in ("written", "done"))
    return {
        "blocked": max(one["blocked"] for one in ranks),
        "gate": max(one["gate"] for one in ranks),
        "captured": max(one["captured"] for one in ranks),
        "lost": lost,
        "written": written if durable else None,
        "durable": done if durable else None,
        "in_memory": None if durable else done,
        "drift": drift,
        "steps": ranks[0]["steps"],
        "step": statistics.fmean(one["before"] for one in ranks),
    }


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _sweep(run: str, since: float) -> None:
    """What killed processes of peers left in shared places: named by the run, or by torch with the process's id."""
    for path in _SHARED_MEMORY.iterdir():
        by_torch = re.match(r"torch_(\d+)_", path.name)
        dead = by_torch is not None and not pathlib.Path(f"/proc/{by_torch[1]}").exists()
        with contextlib.suppress(OSError):
            if run in path.name or dead and path.stat().st_ctime >= since:
                path.unlink()
    for folder in _DLROVER_SOCKETS.glob(f"{run}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        _DLROVER_SOCKETS.rmdir()  # only when nobody else's are in it
