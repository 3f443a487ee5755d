"""libckpt by ctypes: structs and prototypes of `client/include/ckpt/ckpt.h`, declared once.

The library is `$CKPTD_LIB`, else `libckpt.so` beside this file, else in the build tree of the repository that this file
belongs to, else what the loader finds. ctypes releases the GIL during each call.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from ctypes import POINTER, c_char_p, c_int32, c_uint32, c_uint64, c_void_p

EAGER, DEVICE, STAYS = 1, 2, 4
SELFCHECK, WAIT_FOR_SLOT, UNCHANGED = 1, 2, 4
POSTMORTEM, RESTART = 1, 2
CAPTURED, PROTECTED, DURABLE, DROPPED, COPIED, STILL = 1, 2, 4, 8, 16, 32
WANT_NEWEST, WANT_STEP, WANT_FRESH = 0, 1, 2
RELOAD = 1
SOURCES = ("none", "region", "replica", "parity", "local", "storage", "rescued")


class _Sized(ctypes.Structure):
    """Structs of the ABI begin with their own size."""

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_bytes=ctypes.sizeof(type(self)), **fields)


class Options(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint32), ("rank", c_uint32), ("world", c_uint32), ("every", c_uint32), ("job", c_char_p),
        ("socket", c_char_p), ("gate_timeout_ns", c_uint64), ("gpu_path", c_uint32), ("flags", c_uint32),
        ("reserved", c_uint64 * 3),
    ]  # fmt: skip


class TableView(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint32), ("reserved0", c_uint32), ("count", c_uint64), ("names", c_char_p),
        ("name_ends", c_void_p), ("dtypes", c_void_p), ("dims", c_void_p), ("shapes", c_void_p),
        ("shard_offsets", c_void_p), ("global_shapes", c_void_p), ("data", c_void_p), ("flags", c_void_p),
        ("alias_count", c_uint64), ("aliases", c_char_p), ("alias_ends", c_void_p), ("alias_of", c_void_p),
        ("extra_bytes", c_uint64), ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class StepState(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint32), ("flags", c_uint32), ("code", c_int32), ("reserved0", c_uint32),
        ("blocked_ns", c_uint64), ("eager_bytes", c_uint64),
    ]  # fmt: skip


class Want(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint32), ("want", c_uint32), ("step", c_uint64), ("timeout_ns", c_uint64),
        ("connect_timeout_ns", c_uint64),
    ]  # fmt: skip


class Skipped(ctypes.Structure):
    _fields_ = [("attempt", c_uint64), ("step", c_uint64), ("code", c_int32), ("rank", c_uint32)]


class RestoredView(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint32), ("source", c_uint32), ("attempt", c_uint64), ("snapshot_attempt", c_uint64),
        ("snapshot_step", c_uint64), ("slot_bytes", c_uint64), ("image_count", c_uint32), ("skipped_count", c_uint32),
        ("skipped", Skipped * 32),
    ]  # fmt: skip


class InfoView(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint32), ("connected", c_uint32), ("attempt", c_uint64), ("fenced_by", c_uint64),
        ("captured_step", c_uint64), ("durable_step", c_uint64), ("prepared_bytes", c_uint64),
        ("layout_bytes", c_uint64), ("ready", c_uint32), ("last_code", c_int32), ("dropped", c_uint64),
        ("saves", c_uint64), ("reconnects", c_uint64), ("last_sentence", ctypes.c_char * 256),
        ("pinned_bytes", c_uint64), ("pin_error", ctypes.c_char * 128), ("gpu_path", c_uint32),
        ("reserved0", c_uint32), ("pulled", c_uint64), ("registered", c_uint64), ("exported", c_uint64),
        ("path_why", ctypes.c_char * 128), ("rescuable", c_uint32), ("broken", c_uint32),
        ("rescue_why", ctypes.c_char * 128),
    ]  # fmt: skip


_handle = c_void_p
_PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "ckpt_open": (c_int32, [POINTER(Options), POINTER(_handle)]),
    "ckpt_register": (c_int32, [_handle, POINTER(TableView)]),
    "ckpt_save": (c_int32, [_handle, c_uint64, c_char_p, c_uint64, c_void_p, c_uint32]),
    "ckpt_step": (c_int32, [_handle, c_uint64, c_char_p, c_uint64, c_void_p, c_uint32, POINTER(c_int32)]),
    "ckpt_unexport": (c_int32, [_handle, c_uint64]),
    "ckpt_gate": (c_int32, [_handle, c_uint64]),
    "ckpt_gate_stream": (c_int32, [_handle, c_void_p, c_uint64]),
    "ckpt_stream": (c_int32, [_handle, c_int32, c_void_p]),
    "ckpt_torn": (c_uint64, [_handle, c_void_p, c_uint64]),
    "ckpt_poll": (c_int32, [_handle, c_uint64, POINTER(StepState)]),
    "ckpt_wait": (c_int32, [_handle, c_uint64, c_uint32, c_uint64]),
    "ckpt_restore_begin": (c_int32, [_handle, POINTER(Want), POINTER(RestoredView)]),
    "ckpt_restore_header": (c_int32, [_handle, c_uint32, POINTER(c_void_p), POINTER(c_uint64), POINTER(c_uint64)]),
    "ckpt_restore_read": (c_int32, [_handle, c_void_p, c_uint64]),
    "ckpt_restore_end": (c_int32, [_handle, c_int32, c_char_p, POINTER(RestoredView)]),
    "ckpt_restore_cancel": (c_int32, [_handle]),
    "ckpt_skipped_why": (c_char_p, [_handle, c_uint32]),
    "ckpt_info": (c_int32, [_handle, POINTER(InfoView)]),
    "ckpt_close": (c_int32, [_handle, c_uint64]),
    "ckpt_crc32c": (c_uint32, [c_uint32, c_void_p, c_uint64]),
    "ckpt_error": (c_char_p, []),
    "ckpt_code_name": (c_char_p, [c_int32]),
    "ckpt_version": (c_char_p, []),
}


def candidates() -> list[str]:
    """Where the library may be, best first. The last one is for the loader to find."""
    if os.environ.get("CKPTD_LIB"):
        return [os.environ["CKPTD_LIB"]]
    here = pathlib.Path(__file__).resolve().parent
    found = [here / "libckpt.so"]
    if len(here.parents) > 2:
        found += [here.parents[2] / "build" / preset / "lib" / "libckpt.so" for preset in ("release", "dev")]
    return [str(path) for path in found if path.exists()] + ["libckpt.so.1"]


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library. OSError, naming where it was looked for, when there is none."""
    tried = candidates()
    for path in tried:
        try:
            return _declare(ctypes.CDLL(path))
        except OSError as error:
            reason = error
    raise OSError(
        f"libckpt.so: tried {', '.join(tried)} ({reason}); build it (tools/build) or set CKPTD_LIB"
    ) from reason


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def sentence() -> str:
    """The sentence of the last failure on this thread."""
    return library().ckpt_error().decode("utf-8", "replace")
