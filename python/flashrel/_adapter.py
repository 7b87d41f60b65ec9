"""How torch tensors reach the library: in C where torch has DLPack functions in C (2.10 and newer), else read in Python.

Two adapters over one reader (python/native/torch_adapter.cpp): apache-tvm-ffi where it is installed, else ctypes. Same
arguments, same results. FLASHREL_ADAPTER=ctypes keeps to ctypes, FLASHREL_ADAPTER=tvm-ffi makes a missing piece an error.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _abi

ADAPTERS = ("auto", "ctypes", "tvm-ffi")


class Adapter(NamedTuple):
    """`arguments` are 12 tensors or None, the device, scalars_of's ten, then the addresses of the backend's name, the route's
    name (0 = automatic) and a schedule (0 = its own), the workspace's address and bytes, and the stream.
    """

    name: str
    call: Callable[[tuple[Any, ...]], int]  # flashrel_attention; its flashrel_code, or UNREAD
    read: Callable[[tuple[Any, ...], Any], bool]  # fills a flashrel_attention_args


def library_path() -> str:
    path = _abi.library_path().with_name("libflashrel_torch.so")
    if not path.exists():
        raise ImportError(f"no adapter at {path}")
    return str(path)


def load(torch: Any) -> Adapter | None:
    """The adapter that FLASHREL_ADAPTER asks for; None where tensors must be read in Python."""
    wanted = os.environ.get("FLASHREL_ADAPTER", "auto")
    if wanted not in ADAPTERS:
        raise ValueError(f"FLASHREL_ADAPTER: got {wanted!r}, expected one of {', '.join(ADAPTERS)}")
    adapter = None
    try:
        adapter = by_ctypes(torch)
        if wanted != "ctypes":
            adapter = Adapter("tvm-ffi", by_tvm_ffi(), adapter.read)
    except (ImportError, OSError, RuntimeError) as error:
        if wanted == "tvm-ffi":
            raise ImportError(f"FLASHREL_ADAPTER: tvm-ffi cannot be used: {error}") from error
    return adapter


class _Torch(ctypes.Structure):
    """flashrel_torch"""

    _fields_ = [
        ("dlpack", ctypes.c_void_p),
        ("none", ctypes.py_object),
        ("tensor", ctypes.py_object),
        ("parameter", ctypes.py_object),
    ]


def by_ctypes(torch: Any) -> Adapter:
    # Where torch has none, tvm-ffi would compile such functions at its first call: not worth it.
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        raise ImportError("this torch has no __dlpack_c_exchange_api__")
    # PyDLL: the functions are called with the interpreter's lock, as torch's own want it.
    library = ctypes.PyDLL(library_path())
    read, attention = library.flashrel_torch_read, library.flashrel_torch_attention
    read.argtypes = [ctypes.POINTER(_Torch), ctypes.py_object, ctypes.c_void_p]
    attention.argtypes = [ctypes.POINTER(_Torch), ctypes.py_object]
    capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    capsule_pointer.argtypes, capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    dlpack = capsule_pointer(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    seen = ctypes.byref(_Torch(dlpack, None, torch.Tensor, torch.nn.Parameter))

    def call(arguments: tuple[Any, ...]) -> int:
        return attention(seen, arguments)

    return Adapter("ctypes", call, lambda arguments, args: read(seen, arguments, args) == _abi.OK)


def by_tvm_ffi() -> Callable[[tuple[Any, ...]], int]:
    import tvm_ffi

    function = tvm_ffi.load_module(library_path())["rel_attention"]

    def call(arguments: tuple[Any, ...]) -> int:
        try:
            return function(*arguments)
        except Exception:  # torch or tvm-ffi cannot hand an argument over
            return _abi.UNREAD

    return call
