"""Arrays of any framework as the ABI's tensors: NumPy, torch, and everything else that speaks DLPack (CuPy, JAX).

A reader takes `(name, array, stream)` and gives `(device, values)`: the CUDA ordinal or HOST_DEVICE, and the 11 numbers
of a flashrel_tensor. `stream` is where FlashRel will run. Nothing is copied and nothing is moved. This module imports no
framework: it recognises the arrays of those that the caller has imported.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _abi

HOST_DEVICE = -1
View = tuple[int, tuple[int, ...]]
_PAD = tuple((0,) * (_abi.MAX_RANK - rank) for rank in range(_abi.MAX_RANK + 1))


def _pad(name: str, rank: int) -> tuple[int, ...]:
    if rank > _abi.MAX_RANK:
        raise ValueError(f"{name}: got rank {rank}, expected at most {_abi.MAX_RANK}")
    return _PAD[rank]


def _unknown_dtype(name: str, dtype: object) -> ValueError:
    return ValueError(f"{name}: got dtype {dtype}, expected {', '.join(_abi.DTYPE_NAMES[:-1])} or {_abi.DTYPE_NAMES[-1]}")


# ---------------------------------------------------------------- NumPy

# bfloat16 has no NumPy type: ml_dtypes.bfloat16 arrays are taken by name, uint16 arrays as bfloat16 bits.
_NUMPY_CODES = {"float32": 0, "float16": 1, "bfloat16": 2, "uint16": 2, "int32": 3}
_numpy_code: dict[np.dtype, int] = {}


def read_numpy(name: str, x: np.ndarray, stream: int) -> View:
    dtype = x.dtype
    code = _numpy_code.get(dtype)
    if code is None:
        code = _NUMPY_CODES.get(dtype.name) if dtype.isnative else None
        if code is None:
            raise _unknown_dtype(name, dtype)
        _numpy_code[dtype] = code
    size = dtype.itemsize
    pad = _pad(name, x.ndim)
    if any(step % size for step in x.strides):
        raise ValueError(f"{name}: got strides of {x.strides} bytes, expected multiples of the element size {size}")
    # NumPy gives empty arrays zero strides.
    strides = tuple([step // size for step in x.strides]) if x.size else _contiguous_strides(x.shape)
    return HOST_DEVICE, (x.__array_interface__["data"][0], code, x.ndim, *x.shape, *pad, *strides, *pad)


# ---------------------------------------------------------------- torch

_torch_code: dict[Any, int] = {}


def read_torch(name: str, x: Any, stream: int) -> View:
    code = _torch_code.get(x.dtype)
    if code is None:
        raise _unknown_dtype(name, str(x.dtype).removeprefix("torch."))
    if x.is_cuda:
        device = x.get_device()
    elif x.is_cpu:
        device = HOST_DEVICE
    else:
        raise ValueError(f"{name}: lives on {x.device}, expected cpu or cuda memory")
    shape = x.shape
    rank = len(shape)
    pad = _PAD[rank] if rank <= _abi.MAX_RANK else _pad(name, rank)
    return device, (x.data_ptr(), code, rank, *shape, *pad, *x.stride(), *pad)


def _is_torch(x: object) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, getattr(torch, "Tensor", ())):
        return False
    if not _torch_code:
        _torch_code.update({torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int32: 3})
    return True


# ---------------------------------------------------------------- DLPack


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13
_DL_DTYPES = {(2, 32): 0, (2, 16): 1, (4, 16): 2, (0, 32): 3}  # (DLDataTypeCode, bits) -> flashrel_dtype
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def dlpack_device(name: str, x: Any) -> int:
    kind, ordinal = x.__dlpack_device__()
    if kind in (_DL_CUDA, _DL_CUDA_MANAGED):
        return int(ordinal)
    if kind in (_DL_CPU, _DL_CUDA_HOST):
        return HOST_DEVICE
    raise ValueError(f"{name}: lives on DLPack device type {int(kind)}, expected cpu or cuda memory")


def read_dlpack(name: str, x: Any, stream: int) -> View:
    device = dlpack_device(name, x)
    if device == HOST_DEVICE:
        capsule = x.__dlpack__()
    else:
        # The producer makes its pending work visible on our stream. DLPack numbers the legacy default stream 1, not 0.
        capsule = x.__dlpack__(stream=stream if stream else 1)
    # The capsule is not renamed, so dropping it gives the view back; the caller's array keeps the memory alive.
    t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    code = _DL_DTYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    if code is None:
        raise _unknown_dtype(name, getattr(x, "dtype", f"DLPack code {t.code}, {t.bits} bits"))
    rank = t.ndim
    pad = _pad(name, rank)
    shape = tuple(t.shape[:rank])
    strides = tuple(t.strides[:rank]) if t.strides else _contiguous_strides(shape)
    return device, ((t.data or 0) + t.byte_offset, code, rank, *shape, *pad, *strides, *pad)


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


# ---------------------------------------------------------------- dispatch by type

Reader = Callable[[str, Any, int], View]
readers: dict[type, Reader] = {np.ndarray: read_numpy}


def read(name: str, x: Any, device: int, stream: int) -> tuple[int, ...]:
    """The 11 numbers of an array that must live on `device`."""
    reader = readers.get(type(x)) or _find_reader(name, x)
    found, values = reader(name, x, stream)
    if found != device:
        raise ValueError(f"{name}: lives on {place_name(found)}, expected {place_name(device)} like q")
    return values


def place_name(device: int) -> str:
    return "cpu" if device == HOST_DEVICE else f"cuda:{device}"


def _find_reader(name: str, x: object) -> Reader:
    """The reader for this array's type, remembered for the next call."""
    kind = type(x)
    reader: Reader
    if isinstance(x, np.ndarray):
        reader = read_numpy
    elif _is_torch(x):
        reader = read_torch
    elif hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        reader = read_dlpack
    else:
        raise ValueError(f"{name}: got {kind.__module__}.{kind.__qualname__}, expected an array (NumPy, torch or DLPack)")
    readers[kind] = reader
    return reader
