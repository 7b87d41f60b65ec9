"""The other way into the library: torch tensors through apache-tvm-ffi, where it is installed. Same results, less host time.

FLASHREL_ADAPTER=ctypes keeps to ctypes, FLASHREL_ADAPTER=tvm-ffi makes a missing piece an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from . import _abi

ADAPTERS = ("auto", "ctypes", "tvm-ffi")


def load(torch: Any) -> Callable[..., int] | None:
    """flashrel_attention taking tensors; see python/native/tvm_ffi_adapter.cpp for its arguments. None = use ctypes."""
    wanted = os.environ.get("FLASHREL_ADAPTER", "auto")
    if wanted not in ADAPTERS:
        raise ValueError(f"FLASHREL_ADAPTER: got {wanted!r}, expected one of {', '.join(ADAPTERS)}")
    if wanted == "ctypes":
        return None
    try:
        # Without torch's own DLPack functions in C, tvm-ffi would compile some at this point: not worth it.
        if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            raise ImportError("this torch has no __dlpack_c_exchange_api__")
        return function()
    except (ImportError, OSError, RuntimeError) as error:
        if wanted == "tvm-ffi":
            raise ImportError(f"FLASHREL_ADAPTER: tvm-ffi cannot be used: {error}") from error
        return None


def function() -> Callable[..., int]:
    """The adapter's one function; returns a flashrel_code, or _abi.UNREAD."""
    import tvm_ffi

    path = _abi.library_path().with_name("libflashrel_tvm_ffi.so")
    if not path.exists():
        raise ImportError(f"no adapter at {path}")
    return tvm_ffi.load_module(str(path))["rel_attention"]
