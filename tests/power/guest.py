"""A machine for power failures: Debian's kernel and our programs in QEMU, without KVM.

The kernel's package is fetched and unpacked, never installed. The guest's root is an initramfs: busybox, our programs
with their libraries, a few modules, `init`, and the script that `init` sources. It boots once; its state from before it
knows a disk is saved, and each life begins there, a quarter of a second later. Its clock counts instructions (-icount)
while it works, so a slow host makes a slow guest, not one in which everything takes long.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import pathlib
import queue
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path.home() / ".cache" / "ckptd" / "kernel"
_BEFORE = ["crc32c-intel", "xfs", "virtio_pci"]
_AFTER = ["virtio-rng", "virtio_blk"]  # not earlier: a random number from the saved state would be everybody's
_APPLETS = "cat date dd dmesg grep head insmod kill killall mkdir mkfifo mount sed sh sleep sort stty tail tr wc"
_PROGRAMS = ["ckptd", "ckptctl", "ckpt-trainer"]
_LONG = 300.0  # seconds, for a machine that others use too


class Unavailable(Exception):
    """No guest can be had here, and why."""


class Broken(Exception):
    """There is no guest, though there should be one."""


def kernel() -> pathlib.Path:
    """Where the package of the current cloud kernel is unpacked."""
    for tool, package in {
        "qemu-system-x86_64": "qemu-system-x86",
        "busybox": "busybox-static",
        "cpio": "cpio",
        "mkfs.xfs": "xfsprogs",
        "mkfs.ext4": "e2fsprogs",
    }.items():
        if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            raise Unavailable(f"no {tool} here (Debian's package {package})")
    name = re.search(r"Depends: (linux-image-\S+)", _apt_cache("depends", "linux-image-cloud-amd64"))
    if name is None:
        raise Unavailable("apt knows no linux-image-cloud-amd64: it is Debian's, for amd64")
    version = re.search(r"Candidate: (\S+)", _apt_cache("policy", name[1]))
    place = CACHE / f"{name[1]}_{version[1] if version else 'unknown'}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two tests that begin at once, one fetches it
        if not place.exists():
            _unpack(name[1], place)
    return place


def _apt_cache(*arguments: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(["apt-cache", *arguments], capture_output=True, text=True, env=environment).stdout


def _unpack(name: str, place: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        got = subprocess.run(["apt-get", "-q", "download", name], cwd=work, capture_output=True, text=True)
        packages = glob.glob(f"{work}/*.deb")
        if got.returncode != 0 or not packages:
            raise Unavailable(f"apt-get download {name}: {(got.stderr.strip().splitlines() or ['nothing came'])[-1]}")
        subprocess.run(["dpkg", "-x", packages[0], f"{work}/root"], check=True)
        for older in CACHE.glob("linux-image-*"):
            shutil.rmtree(older)
        os.rename(f"{work}/root", place)


def _with_dependencies(modules: pathlib.Path, names: list[str], loaded: list[str]) -> list[str]:
    """The modules to load for `names`, in their order, without what is `loaded` or built into the kernel."""
    out: list[str] = []
    for name in names:
        found = sorted(modules.rglob(f"{name}.ko"))
        if not found or name in loaded:
            continue
        depends = re.search(rb"\0depends=([^\0]*)\0", b"\0" + found[0].read_bytes())
        needed = [one for one in (depends[1].decode() if depends else "").split(",") if one]
        out += _with_dependencies(modules, needed, loaded + out) + [name]
    return out


def _libraries(program: pathlib.Path) -> set[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    if "not found" in said:
        raise Broken(f"{program} lacks libraries: {said}")
    return set(re.findall(r"(?:=> )?(/\S+) \(0x", said))


def pack(build: pathlib.Path, script: pathlib.Path, root: pathlib.Path, kernel_at: pathlib.Path) -> pathlib.Path:
    """Makes the guest's root below `root`; the archive of it."""
    for folder in ["bin", "lib", "lib64", "modules", "proc", "sys", "dev", "run", "disk"]:
        (root / folder).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), root / "bin" / "busybox")
    for applet in _APPLETS.split():
        (root / "bin" / applet).symlink_to("busybox")
    libraries: set[str] = set()
    for program in [build / "bin" / name for name in _PROGRAMS] + [build / "lib" / "no_sync.so"]:
        if not program.exists():
            raise Broken(f"no {program}. Next: tools/build {build.name}")
        to = root / ("bin" if program.parent.name == "bin" else "lib") / program.name
        subprocess.run(["strip", "-o", to, program], check=True)
        libraries |= _libraries(program)
    for library in libraries:
        shutil.copy(library, root / ("lib64" if "ld-linux" in library else "lib"))
    _copy_modules(kernel_at, root / "modules")
    shutil.copy(HERE / "init", root / "init")
    shutil.copy(script, root / "script")
    archive = root.with_suffix(".cpio")
    with open(archive, "wb") as out:
        listing = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
        subprocess.run("cpio -o -H newc -R 0:0 --quiet".split(), cwd=root, input=listing, stdout=out, check=True)
    return archive


def _copy_modules(kernel_at: pathlib.Path, to: pathlib.Path) -> None:
    modules = next((kernel_at / "lib" / "modules").iterdir())
    before = _with_dependencies(modules, _BEFORE, [])
    after = _with_dependencies(modules, _AFTER, before)
    for name, order in {"before": before, "after": after}.items():
        (to / name).write_text("".join(f"{module}.ko\n" for module in order))
        for module in order:
            subprocess.run(["strip", "-g", "-o", to / f"{module}.ko", next(modules.rglob(f"{module}.ko"))], check=True)


class Console:
    """What the guest says, line by line, until it has ended. A line that its end cut short was not said."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = process
        self._thread = threading.Thread(target=self._read, name="console")
        self._thread.start()

    def line(self, timeout: float) -> str | None:
        """None: nothing for so long. Raises EOFError when the guest has ended and all is read."""
        try:
            line = self._lines.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
            raise EOFError
        return line

    def nudge(self) -> None:
        """Whoever waits for a line gets an empty one."""
        self._lines.put("")

    def join(self) -> None:
        self._thread.join()

    def _read(self) -> None:
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                self._lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self._lines.put(None)


class Machine:
    """A machine that was saved before it knew a disk, from which guests start."""

    def __init__(self, work: pathlib.Path, build: pathlib.Path, script: pathlib.Path, memory_mib: int) -> None:
        kernel_at = kernel()
        self._work = work
        self._memory_mib = memory_mib
        self._archive = pack(build, script, work / "root", kernel_at)
        self._kernel = shutil.copy(next((kernel_at / "boot").glob("vmlinuz-*")), work / "vmlinuz")
        self._state = work / "state"
        self._save()

    def start(self, arguments: str, address: str = "") -> Guest:
        """A guest that begins its script with these arguments. Its disk is served at the socket `address`, if any."""
        disk = f"driver=nbd,server.type=unix,server.path={address}" if address else "driver=null-co"
        guest = Guest(self._command([disk]) + ["-incoming", f"exec:cat {self._state}"])
        guest.say(f"GO {int(time.time())} {arguments}")
        return guest

    def _command(self, disk: list[str]) -> list[str]:
        return [
            *"qemu-system-x86_64 -M pc -accel tcg,tb-size=128 -cpu Nehalem -icount shift=1".split(),
            *"-nodefaults -display none -no-reboot".split(),
            *["-m", str(self._memory_mib), "-kernel", str(self._kernel), "-initrd", str(self._archive)],
            *["-append", "console=ttyS0 quiet panic=-1 mitigations=off"],
            *["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"],
            *["-blockdev", ",".join(["node-name=disk", *disk]), "-device", "virtio-blk-pci,drive=disk"],
            *["-device", "virtio-rng-pci"],
        ]

    def _save(self) -> None:
        monitor = str(self._work / "monitor")
        guest = Guest(self._command(["driver=null-co"]) + ["-qmp", f"unix:{monitor},server=on,wait=off"])
        try:
            guest.until("READY")
            with socket.socket(socket.AF_UNIX) as qmp:
                qmp.connect(monitor)
                lines = qmp.makefile("rw")
                lines.readline()
                for command, arguments in [
                    ("qmp_capabilities", {}),
                    ("migrate-set-parameters", {"max-bandwidth": 1 << 40}),
                    ("migrate", {"uri": f"exec:cat >{self._state}"}),
                ]:
                    _ask(lines, command, arguments)
                while (status := _ask(lines, "query-migrate", {}).get("status")) != "completed":
                    if status == "failed":
                        raise Broken("QEMU could not save the guest's state")
                    time.sleep(0.05)  # QEMU 7 tells of the end by no event that is on without asking
        finally:
            guest.kill()


def _ask(lines, command: str, arguments: dict) -> dict:
    lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    lines.flush()
    while True:
        answer = json.loads(lines.readline())
        if "error" in answer:
            raise Broken(f"QEMU: {command}: {answer['error']['desc']}")
        if "return" in answer:
            return answer["return"]


class Guest:
    """A running QEMU."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],  # it does not outlive us, however we end
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.console = Console(self._process)

    def say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended: the console says so
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def exit_code(self) -> int:
        """Of QEMU, which has closed the console: 0 when the guest's kernel panicked."""
        return self._process.wait()

    def until(self, word: str) -> list[str]:
        """What is said before the line `word`."""
        said: list[str] = []
        deadline = time.monotonic() + _LONG
        try:
            while (line := self.console.line(deadline - time.monotonic())) != word:
                if line is None:
                    raise Broken(f"the guest did not say {word} in {_LONG:.0f} s, but: {said[-20:]}")
                if line.startswith("WRONG"):
                    raise Broken(f"the guest: {line}")
                said.append(line)
        except EOFError:
            raise Broken(f"the guest ended: {said[-20:]}") from None
        return said

    def kill(self) -> None:
        """SIGKILL. What it said before can still be read."""
        self._process.kill()
        self._process.wait()
        self.console.join()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
