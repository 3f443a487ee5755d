"""Processes that talk: one JSON object a message over a SOCK_SEQPACKET pair, descriptors beside it.

The process that runs the parts never loads the driver: a broken context, a hang or a kill costs a child.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from driver import CudaError, MissingFunction, NoDriver

HERE = pathlib.Path(__file__).resolve().parent
HANG_SECONDS = 10.0  # a call that takes longer hangs
_END_SECONDS = 5.0  # a killed process that is still there then cannot be killed
_MESSAGE = 1 << 16
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4

Reply = dict[str, Any]


class Hung(RuntimeError):
    """A child did not answer within HANG_SECONDS."""


class Died(RuntimeError):
    """A child ended instead of answering."""


class OutOfTime(RuntimeError):
    """The part's time ended while a child was asked."""


class Broken(RuntimeError):
    """A child raised what no driver told it: a fault of these scripts."""


@dataclass
class Who:
    """As whom a child runs. user: its real, effective and saved user and group; acting: the effective ones alone."""

    user: int | None = None
    acting: int | None = None
    own_pids: bool = False  # in a PID namespace of its own
    environment: dict[str, str] = field(default_factory=dict)


def send(to: socket.socket, message: Reply, fds: tuple[int, ...] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    to.sendmsg([json.dumps(message).encode()], rights)


def receive(source: socket.socket) -> tuple[Reply | None, list[int]]:
    """None: the other end is gone. TimeoutError as the socket is set."""
    text, fds, _, _ = socket.recv_fds(source, _MESSAGE, 4)
    return (json.loads(text) if text else None), fds


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def raise_error(reply: Reply) -> None:
    if "missing" in reply:
        raise MissingFunction(reply["missing"])
    if "no_driver" in reply:
        raise NoDriver(reply["no_driver"])
    if "call" in reply:
        raise CudaError(reply["call"], reply["code"], reply["name"])
    if "trace" in reply:
        raise Broken(reply["trace"])


class Child:
    """A script of this folder as a process. A context manager: it is killed at the end.

    patience: seconds that a call may take, and its end; else HANG_SECONDS, and _END_SECONDS, as the driver alone may.
    """

    def __init__(
        self, script: str, left: Callable[[], float], log: Any, who: Who | None = None, patience: float | None = None
    ) -> None:
        who = who or Who()
        self._left, self._patience = left, patience
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wrap = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if who.own_pids else []
        identity = json.dumps([theirs.fileno(), who.user, who.acting])
        self.process = subprocess.Popen(
            [*wrap, sys.executable, HERE / script, identity], pass_fds=[theirs.fileno()], preexec_fn=end_with_parent,
            env={**os.environ, **who.environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # fmt: skip
        theirs.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def post(self, do: str, fds: tuple[int, ...] = (), **arguments: Any) -> None:
        """Asks and does not wait; `answer` waits. Died."""
        try:
            send(self._socket, {"do": do, **arguments}, fds)
        except OSError as error:
            raise Died(f"before {do}") from error

    def answer(self) -> tuple[Reply, list[int]]:
        """The next reply. Hung, Died, OutOfTime; CudaError, MissingFunction, NoDriver, Broken as the child met it."""
        patience = self._patience or HANG_SECONDS
        seconds = min(patience, self._left())
        self._socket.settimeout(max(seconds, 0.001))
        try:
            reply, fds = receive(self._socket)
        except TimeoutError as error:
            raise (Hung(f"{seconds:.0f} s") if seconds >= patience else OutOfTime()) from error
        except ConnectionError as error:
            raise Died("while it was asked") from error
        if reply is None:
            raise Died("while it was asked")
        raise_error(reply)
        return reply, fds

    def ask(self, do: str, fds: tuple[int, ...] = (), **arguments: Any) -> Reply:
        """Asks and waits. What `answer` raises."""
        self.post(do, fds, **arguments)
        return self.answer()[0]

    def ask_with_fds(self, do: str, **arguments: Any) -> tuple[Reply, list[int]]:
        self.post(do, **arguments)
        return self.answer()

    def kill(self) -> float:
        """SIGKILL; seconds until it had ended. Hung: it cannot be killed."""
        began = time.monotonic()
        self.process.kill()
        self._reap()
        return time.monotonic() - began

    def leave(self) -> int:
        """Lets it end as a program does; its exit status."""
        self.ask("leave")
        return self._reap()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def _reap(self) -> int:
        try:
            return self.process.wait(self._patience or _END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Hung(f"process {self.process.pid} does not end") from error
        finally:
            self._socket.close()


def end_with_parent() -> None:
    """In a new process, before its program: SIGKILL when the thread that made it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# A change of user forgets the parent's death signal and bars other processes of that user, which a program started by
# the user would not do.
def _become(user: int | None, acting: int | None) -> None:
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if acting is not None:
        os.setegid(acting)
        os.seteuid(acting)
    if user is not None or acting is not None:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)
        end_with_parent()


Handler = Callable[..., "Reply | Iterator[Reply] | None"]


class Port:
    """The child's end. `handlers`: by name; each takes what the message holds, and `fds` where any came."""

    def __init__(self) -> None:
        number, user, acting = json.loads(sys.argv[1])
        with contextlib.suppress(OSError):
            ctypes.CDLL("libcuda.so.1")  # found as this user; the other may not see its folder
        _become(user, acting)
        self.socket = socket.socket(fileno=number)

    def serve(self, handlers: dict[str, Handler]) -> None:
        """Until the other end is gone or says leave."""
        while True:
            message, fds = receive(self.socket)
            if message is None:
                return
            do = message.pop("do")
            if do == "leave":
                send(self.socket, {})
                return
            if fds:
                message["fds"] = fds
            self._answer(handlers[do], message)

    def _answer(self, handler: Handler, message: Reply) -> None:
        try:
            reply = handler(**message) or {}
            for one in [reply] if isinstance(reply, dict) else reply:
                fds = tuple(one.pop("fds", ()))
                send(self.socket, one, fds)
                close_all(fds)  # an open descriptor keeps device memory
        except MissingFunction as error:
            send(self.socket, {"missing": str(error)})
        except NoDriver as error:
            send(self.socket, {"no_driver": str(error)})
        except CudaError as error:
            send(self.socket, {"call": error.call, "code": error.code, "name": error.name})
        except Exception:
            send(self.socket, {"trace": traceback.format_exc()[-2000:]})
