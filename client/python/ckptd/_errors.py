"""Errors of ckptd. Generated from proto/local/errors.def by tools/codegen/errors_py.py: change that table instead."""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from typing import NamedTuple


class CkptdError(RuntimeError):
    """Base of every error of ckptd. `code`: name of the row in the table of errors, for programs."""

    code = "INTERNAL"


class AgentUnreachable(CkptdError):
    """No agent answers, or it speaks another version."""


class RestoreError(CkptdError):
    """`restore()` could not bring the state back; nothing trains from a guess."""


class LayoutMismatch(RestoreError):
    """Names, shapes or dtypes of the checkpoint and of the trainer differ."""


class SaveError(CkptdError):
    """A save was dropped; training may go on."""


class NotFound(RestoreError):
    """The step, job or checkpoint asked for does not exist."""


class Info(NamedTuple):
    """One row of the table."""

    name: str
    exit_code: int
    exception: type[Exception]
    next_step: str


INFO = {
    1: Info("INVALID_ARGUMENT", 2, ValueError,
        "correct the argument named above"),
    2: Info("AGENT_UNREACHABLE", 3, AgentUnreachable,
        "start the agent: systemctl status ckptd tells how it is, ckptd --user starts your own (in Python agent='auto'); if it runs elsewhere, name its socket in CKPTD_SOCKET"),
    3: Info("NOT_FOUND", 4, NotFound,
        "check the name or path above; ckptctl list shows the steps that exist"),
    4: Info("CORRUPT", 5, RestoreError,
        "ckptctl verify names what is damaged; an older step may be whole: ckptctl list"),
    5: Info("REFUSED", 6, RestoreError,
        "see the sentence above"),
    6: Info("LAYOUT_MISMATCH", 6, LayoutMismatch,
        "restore with the model and world size that were saved, or start afresh with restart=True"),
    7: Info("RESTORE_FAILED", 1, RestoreError,
        "read the reasons above; restore(step=...) picks another step, restart=True starts afresh"),
    8: Info("RANK_TAKEN", 6, RestoreError,
        "another live process holds this rank: stop it, or use another job name"),
    9: Info("JOB_OWNED", 6, RestoreError,
        "the job belongs to another user: choose another job name"),
    10: Info("QUOTA_EXCEEDED", 6, SaveError,
        "raise region.job_quota or region.size in ckptd.toml"),
    11: Info("REGION_FULL", 6, SaveError,
        "make the region's tmpfs larger (mount -o remount,size=...), or stop a job that is no longer needed"),
    12: Info("STORAGE_FULL", 6, SaveError,
        "free space on the storage (ckptctl gc, ckptctl rm); flushing goes on by itself"),
    13: Info("STORAGE_READ_ONLY", 6, SaveError,
        "remount the storage writable; flushing goes on by itself"),
    14: Info("STORAGE_IO", 1, SaveError,
        "look at the storage (dmesg, mount); flushing goes on by itself"),
    15: Info("STORAGE_HUNG", 1, SaveError,
        "the storage does not answer: look at its server; snapshots stay in memory meanwhile"),
    16: Info("NEWER_VERSION", 6, RestoreError,
        "this was written by a newer ckptd: upgrade this one"),
    17: Info("FENCED", 6, SaveError,
        "a newer attempt of this job runs: this process is out of date and may be stopped"),
    18: Info("TIMEOUT", 1, RestoreError,
        "see who is missing above; restore(timeout=...) waits longer"),
    19: Info("RANKS_MISSING", 1, RestoreError,
        "start the ranks named above, or stop this one"),
    20: Info("RANKS_DISAGREE", 6, RestoreError,
        "give every rank the same world size and the same restore arguments"),
    21: Info("UNGATED", 1, SaveError,
        "call ck.gate() before changing captured tensors, or mark them with ckptd.eager()"),
    22: Info("GATE_DEADLINE", 1, SaveError,
        "the capture was slower than gate_timeout; training went on without this save"),
    23: Info("NO_FREE_SLOT", 1, SaveError,
        "the storage is slower than the saves: save less often, raise region.slots, or let durability.back_pressure be wait or replace-queued"),
    24: Info("MOVED", 1, SaveError,
        "a tensor moved; it is registered again and the next save holds it"),
    25: Info("LAYOUT_PREPARING", 1, SaveError,
        "memory for the new layout is being prepared; later saves succeed"),
    26: Info("TORN", 1, SaveError,
        "the tensors named above changed before gate(); they are captured eagerly from now on"),
    27: Info("BELOW_FLOOR", 1, SaveError,
        "another rank skipped this step; the next save is common again"),
    28: Info("NOT_RESTORED", 6, SaveError,
        "call restore() first, or pass restart=True to start this job afresh"),
    29: Info("UNSUPPORTED_TYPE", 2, TypeError,
        "convert the value named above to a tensor or a plain value"),
    30: Info("UNSUPPORTED_DTYPE", 2, TypeError,
        "convert the tensor named above to a dtype of the safetensors format"),
    31: Info("PROTOCOL", 1, AgentUnreachable,
        "libckpt and ckptd do not understand each other: install matching versions"),
    32: Info("DRAINING", 6, SaveError,
        "the agent is draining for maintenance; saves go on when it is back"),
    33: Info("PERMISSION", 6, AgentUnreachable,
        "use an account that may (the socket is group ckptd's), grant the right, or start ckptd --user"),
    34: Info("INTERNAL", 1, RestoreError,
        "this is a bug in ckptd: keep the log"),
    35: Info("CANCELLED", 1, SaveError,
        "the process closed its checkpointer before this save was finished"),
    36: Info("BUSY", 1, SaveError,
        "the previous save is still being captured; save less often"),
    37: Info("INTERRUPTED", 1, SaveError,
        "the agent was restarted, or lost this memory, while the save was captured; the next save is whole again"),
    38: Info("SUPERSEDED", 1, SaveError,
        "a newer step is durable, or took its place in memory before it was flushed: durability.back_pressure and durability.flush_every say which steps are written"),
    39: Info("DEVICE", 1, SaveError,
        "the GPU answered as above; after an illegal address or a launch failure only a restart of the trainer helps (nvidia-smi -q, dmesg)"),
}
_BY_NAME = {info.name: info for info in INFO.values()}
_SPECIFIC = (ValueError, TypeError)


def code_name(status: int) -> str:
    """Name of a status of libckpt (a negative number): "REGION_FULL"."""
    return INFO[-status].name if -status in INFO else "INTERNAL"


def make(name: str, sentence: str, exception: type[Exception] | None = None) -> Exception:
    """The exception of row `name`, or `exception` instead of the row's: the sentence, then what to do next."""
    info = _BY_NAME.get(name, _BY_NAME["INTERNAL"])
    error = (exception or info.exception)(f"{sentence.rstrip('.')}. Next step: {info.next_step}.")
    if not isinstance(error, _SPECIFIC):
        error.code = info.name  # type: ignore[attr-defined]
    return error
