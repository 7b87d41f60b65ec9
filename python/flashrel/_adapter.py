"""How torch tensors reach the library: read in C where torch has DLPack functions in C (2.10 and newer), else in Python.

With apache-tvm-ffi installed the whole call is made in C. Same results, less host time. FLASHREL_ADAPTER=ctypes keeps to
ctypes, FLASHREL_ADAPTER=tvm-ffi makes a missing piece an error.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _abi

ADAPTERS = ("auto", "ctypes", "tvm-ffi")


class Adapter(NamedTuple):
    """Functions of python/native/torch_adapter.cpp; None = not here.

    `call` is flashrel_attention taking tensors, through tvm-ffi. `read` fills the tensors of a packed struct.
    """

    call: Callable[..., int] | None
    read: Callable[..., bool] | None


def library_path() -> str:
    path = _abi.library_path().with_name("libflashrel_torch.so")
    if not path.exists():
        raise ImportError(f"no adapter at {path}")
    return str(path)


def load(torch: Any) -> Adapter:
    wanted = os.environ.get("FLASHREL_ADAPTER", "auto")
    if wanted not in ADAPTERS:
        raise ValueError(f"FLASHREL_ADAPTER: got {wanted!r}, expected one of {', '.join(ADAPTERS)}")
    call = read = None
    try:
        read = reader(torch)
        call = None if wanted == "ctypes" else tvm_ffi_call()
    except (ImportError, OSError, RuntimeError) as error:
        if wanted == "tvm-ffi":
            raise ImportError(f"FLASHREL_ADAPTER: tvm-ffi cannot be used: {error}") from error
    return Adapter(call, read)


def reader(torch: Any) -> Callable[..., bool]:
    """read(device, args, 12 tensors or None): False where one must be read in Python, which also names what is wrong."""
    # Where torch has none, tvm-ffi would compile such functions at its first call: not worth it.
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        raise ImportError("this torch has no __dlpack_c_exchange_api__")
    # PyDLL: the reader runs with the interpreter's lock, as torch's functions want it. The attention call does not.
    function = ctypes.PyDLL(library_path()).flashrel_read_tensors
    function.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_int64, ctypes.c_void_p] + 12 * [ctypes.py_object]
    capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    capsule_pointer.argtypes, capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    api = ctypes.c_void_p(capsule_pointer(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
    kinds = {torch.Tensor, torch.nn.Parameter, type(None)}  # torch reads the memory of anything it is given as a tensor

    def read(device: int, args: Any, tensors: tuple[Any, ...]) -> bool:
        try:
            return kinds.issuperset(map(type, tensors)) and function(api, None, device, args, *tensors) == _abi.OK
        except Exception:  # torch has its own words for memory that DLPack cannot describe
            return False

    return read


def tvm_ffi_call() -> Callable[..., int]:
    """The adapter's function for tvm-ffi; returns a flashrel_code, or _abi.UNREAD."""
    import tvm_ffi

    return tvm_ffi.load_module(library_path())["rel_attention"]
