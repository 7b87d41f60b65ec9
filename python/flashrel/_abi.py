"""The C ABI of libflashrel through ctypes: where the library is, how its structs lie in memory, how errors are raised.

include/flashrel/flashrel.h is the manual of every field; nothing here decides anything. The argument structs are packed
in one `struct.pack` call, because filling a ctypes structure field by field costs several times more than the call itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
from pathlib import Path
from typing import Any

OK, INVALID_ARGUMENT, UNSUPPORTED, WORKSPACE, RUNTIME = range(5)
UNREAD = -1  # an adapter's own: it did not understand an argument
HOST, CUDA = 0, 1
FLOAT32, FLOAT16, BFLOAT16, INT32 = range(4)
DTYPE_NAMES = ("float32", "float16", "bfloat16", "int32")
EDGES = {"zero": 0, "clamp": 1}
MAX_RANK = 4

# LAYOUT flashrel_tensor: data pointer, dtype, rank, shape[4], stride[4]. A tensor is the tuple of these 11 numbers.
_TENSOR = "Pii8q"
ABSENT = (0,) * 11
# LAYOUT flashrel_attention_args: struct_size, memory, device | 12 tensors | bounds, scale, flags, window, splits, pointers.
ATTENTION_ARGS = struct.Struct("@Nii" + 12 * _TENSOR + "qqdiiqqqiii4xPPP")
AttentionArgs = ctypes.c_char * ATTENTION_ARGS.size


class ScheduleBuffer(ctypes.Structure):
    """flashrel_schedule_buffer"""

    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("key", ctypes.c_uint64)]


ATTENTION_TENSORS = (
    "q", "k_cache", "v_cache", "block_table", "cache_seqlens", "cu_seqlens_q",
    "rel_logits", "rel", "rel_proj", "rel_scale", "out", "lse",
)  # fmt: skip
REQUIRED_TENSORS = ATTENTION_TENSORS[:6]
# LAYOUT flashrel_merge_args: struct_size, memory, device | parts_out, parts_lse, out, lse.
MERGE_ARGS = struct.Struct("@Nii" + 4 * _TENSOR)


def library_path() -> Path:
    """The shared library: FLASHREL_LIBRARY when set (a build tree under test), else the one inside this package."""
    forced = os.environ.get("FLASHREL_LIBRARY")
    return Path(forced) if forced else Path(__file__).parent / "lib" / "libflashrel.so"


def _load() -> ctypes.CDLL:
    path = library_path()
    if not path.exists():
        raise ImportError(f"flashrel: no library at {path}; install the package with pip, or set FLASHREL_LIBRARY")
    library = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    signatures = {
        "flashrel_attention": [ctypes.c_char_p, pointer, size, pointer],
        "flashrel_attention_workspace": [ctypes.c_char_p, ctypes.POINTER(size)],
        "flashrel_schedule_bytes": [ctypes.c_char_p, ctypes.POINTER(size)],
        "flashrel_schedule": [ctypes.c_char_p, ctypes.POINTER(ScheduleBuffer), pointer],
        "flashrel_plan_json": [ctypes.c_char_p, ctypes.c_char_p, size, ctypes.POINTER(size)],
        "flashrel_merge": [ctypes.c_char_p, pointer],
        "flashrel_info_json": [ctypes.c_char_p, size, ctypes.POINTER(size)],
        "flashrel_set_num_threads": [ctypes.c_int32],
        "flashrel_use_sheared_bias": [ctypes.c_int32] * 2,
    }
    for name, argtypes in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = argtypes, ctypes.c_int32
    library.flashrel_last_error.restype = ctypes.c_char_p
    library.flashrel_version.restype = ctypes.c_char_p
    library.flashrel_bucket_max_seqlen_q.argtypes = [ctypes.c_int64]
    library.flashrel_bucket_max_seqlen_q.restype = ctypes.c_int64
    library.flashrel_inkling_fa4_num_splits.argtypes = [ctypes.c_int32] + 5 * [ctypes.c_int64] + [ctypes.c_int32]
    library.flashrel_inkling_fa4_num_splits.restype = ctypes.c_int64
    _check_layout(library)
    return library


def _check_layout(library: ctypes.CDLL) -> None:
    """A library whose structs have another length than this package packs is refused here, not by a wrong field later."""
    for init, layout in (("flashrel_attention_args_init", ATTENTION_ARGS), ("flashrel_merge_args_init", MERGE_ARGS)):
        buffer = ctypes.create_string_buffer(4096)
        ctypes.memset(buffer, 0xFF, 4096)
        function = getattr(library, init)
        function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_size_t], None
        function(buffer, 4096)  # writes as many bytes as its struct has, and never ends one with 0xff
        size = len(buffer.raw.rstrip(b"\xff"))
        if size != layout.size:
            raise ImportError(f"{init}: struct of {size} bytes, this package expects {layout.size}: versions do not match")


LIB = _load()


def check(code: int) -> None:
    """Raises the library's own sentence: ValueError for what the caller can change, RuntimeError for what the machine did."""
    if code == OK:
        return
    sentence = LIB.flashrel_last_error().decode()
    raise RuntimeError(sentence) if code == RUNTIME else ValueError(sentence)


def size_of(function: Any, args: Any) -> int:
    """Bytes that flashrel_attention_workspace or flashrel_schedule_bytes answers; checks the arguments on the way."""
    size = ctypes.c_size_t()
    check(function(args, ctypes.byref(size)))
    return size.value


def workspace_bytes(args: Any) -> int:
    return size_of(LIB.flashrel_attention_workspace, args)


def json_of(function: Any, *args: Any) -> dict[str, Any]:
    """Calls one of the library's text functions twice, for the length and for the text, and reads the JSON."""
    needed = ctypes.c_size_t()
    check(function(*args, None, 0, ctypes.byref(needed)))
    text = ctypes.create_string_buffer(needed.value)
    check(function(*args, text, needed.value, ctypes.byref(needed)))
    return json.loads(text.value)
