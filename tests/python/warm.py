"""A warm process for trainers of a framework that takes seconds to import: it forks one child for each run.

`python -m warm MODULE` imports MODULE once; each line of JSON on its stdin is a run of `MODULE.main(**request)` in a
child, answered with the child's wait status. No thread may be started by the import.
"""

import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys

_SECONDS = 120  # a run that hangs is killed by its alarm


class Warm:
    """The tests' side."""

    def __init__(self, module, folder, environment):
        self.log = folder / f"{module}.log"
        command = [sys.executable, "-m", "warm", module]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": open(self.log, "ab")}
        self._process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def run(self, environment=None, **request):
        """Exit status of one run, negative for a signal; and the end of what it said."""
        begin = self.log.stat().st_size
        self._process.stdin.write(json.dumps({"environment": environment or {}, **request}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        said = self.log.read_bytes()[begin:].decode(errors="replace")[-3000:]
        assert answer, said
        return os.waitstatus_to_exitcode(int(answer)), said

    def end(self):
        self._process.stdin.close()
        self._process.wait(30)


@contextlib.contextmanager
def importable():
    """For multiprocessing's "forkserver", which reads only the environment to find what it shall import before."""
    before = os.environ.get("PYTHONPATH", "")
    here = pathlib.Path(__file__).resolve().parent
    folders = [str(here.parents[1] / "client" / "python"), str(here)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, before])
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before


def agent_without_flushes(folder):
    """Slots enough that no save of these short steps is dropped."""
    from conftest import Agent

    agent = Agent(folder)
    text = agent.config.read_text().replace("[region]", "[region]\nslots = 4")
    agent.config.write_text(text + "[durability]\nflush_every = 1000\n")
    return agent.start()


def serve(name):
    """Until stdin ends."""
    module = importlib.import_module(name)
    for line in sys.stdin:
        assert len(os.listdir("/proc/self/task")) == 1, "a thread before a fork"
        child = os.fork()
        if child == 0:
            signal.alarm(_SECONDS)
            in_child(module, json.loads(line))
        print(os.waitpid(child, 0)[1], flush=True)


def in_child(module, request):
    """Does not return."""
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request.pop("environment"))
    code = 1
    try:
        module.main(**request)
        code = 0
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
