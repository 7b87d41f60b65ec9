"""What differs between array frameworks around a call: the stream, fresh output arrays, workspace, handing results over.

One small class each for NumPy, torch, CuPy and JAX. The framework is that of `q`; the other arrays may come from any
framework, as long as they live in the same memory. Workspaces are kept per thread, device and stream, so that the calls of
one stream share one, and two threads never interleave launches on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

from . import _adapter
from ._arrays import HOST_DEVICE, dlpack_device

_ALIGNMENT = 256
_GRAIN = 1 << 20  # workspaces grow in whole MiB, so that lengths that creep up do not reallocate at every step


class Block(NamedTuple):
    """Memory to work in; `owner` keeps it alive."""

    owner: Any
    address: int
    n_bytes: int


_NO_BLOCK = Block(None, 0, 0)


class _Blocks(threading.local):
    def __init__(self) -> None:
        self.of: dict[Any, Block] = {}


_blocks = _Blocks()


def clear_workspaces() -> None:
    """Gives back the workspaces that this thread's calls keep for the next ones. CUDA work must have finished."""
    _blocks.of.clear()


class Framework:
    """Workspaces: found by thread, device and stream, replaced by a larger one where a call needs it."""

    adapter: _adapter.Adapter | None = None  # torch has one

    def block(self, device: int, stream: int) -> Block:
        return _blocks.of.get((device, stream), _NO_BLOCK)

    def grow(self, device: int, stream: int, n_bytes: int) -> Block:
        block = _blocks.of[device, stream] = self.allocate(device, stream, -(-n_bytes // _GRAIN) * _GRAIN)
        return block

    def allocate(self, device: int, stream: int, n_bytes: int) -> Block:
        raise NotImplementedError

    def check_writable(self, name: str, x: Any) -> None:
        """Raises where `x` cannot be written into."""

    def deliver(self, like: Any, array: Any, stream: int | None) -> Any:
        """A result as its framework hands it to the caller."""
        return array


class NumPy(Framework):
    """NumPy arrays; also the host side of every other framework, whose calls there are synchronous."""

    def device(self, q: Any) -> int:
        return HOST_DEVICE

    def stream(self, device: int) -> int:
        return 0

    def empty_like(self, x: Any) -> Any:
        return np.empty(x.shape, x.dtype)

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, like.dtype)

    def empty_float32(self, like: Any, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, np.float32)

    def check_writable(self, name: str, x: Any) -> None:
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            raise ValueError(f"{name}: got a read-only array")

    def allocate(self, device: int, stream: int, n_bytes: int) -> Block:
        buffer = np.empty(n_bytes + _ALIGNMENT, np.uint8)
        start = buffer.__array_interface__["data"][0]
        return Block(buffer, start + -start % _ALIGNMENT, n_bytes)

    def to_host(self, x: Any) -> Any:
        return np.asarray(x)


HOST = NumPy()


class Torch(Framework):
    """torch tensors: the caching allocator is stream-ordered, so a replaced workspace may be dropped at once."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.adapter = _adapter.load(torch)
        # What torch's own compiler calls, ten times cheaper, and what is_current_stream_capturing calls.
        raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.stream = raw_stream or (lambda device: torch.cuda.current_stream(device).cuda_stream)
        self.is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)

    def device(self, q: Any) -> int:
        return q.get_device() if q.is_cuda else HOST_DEVICE

    def empty_like(self, x: Any) -> Any:
        return self.torch.empty_like(x, memory_format=self.torch.contiguous_format)

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return self.torch.empty(shape, dtype=like.dtype, device=like.device)

    def empty_float32(self, like: Any, shape: tuple[int, ...]) -> Any:
        # Numbers one by one take torch half the time of a tuple.
        return self.torch.empty(*(shape or ((),)), dtype=self.torch.float32, device=like.device)

    def block(self, device: int, stream: int) -> Block:
        # A graph must own its memory: grow() then allocates from the graph's pool, for this call only.
        return _NO_BLOCK if self.is_capturing() else _blocks.of.get((device, stream), _NO_BLOCK)

    def grow(self, device: int, stream: int, n_bytes: int) -> Block:
        return self.allocate(device, stream, n_bytes) if self.is_capturing() else super().grow(device, stream, n_bytes)

    def allocate(self, device: int, stream: int, n_bytes: int) -> Block:
        cuda, where = self.torch.cuda, contextlib.nullcontext()
        if stream != self.stream(device):
            where = cuda.stream(cuda.ExternalStream(stream, device=device))
        with where:
            tensor = self.torch.empty(n_bytes, dtype=self.torch.uint8, device=f"cuda:{device}")
        return Block(tensor, tensor.data_ptr(), n_bytes)

    def to_host(self, x: Any) -> Any:
        return x.cpu()


class CuPy(Framework):
    """CuPy arrays on CuPy's current stream. A replaced workspace is kept: a captured graph may still use it."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy

    def device(self, q: Any) -> int:
        return q.device.id

    def stream(self, device: int) -> int:
        return self.cupy.cuda.get_current_stream(device).ptr

    def empty_like(self, x: Any) -> Any:
        return self.empty(x, x.shape)

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        with like.device:
            return self.cupy.empty(shape, like.dtype)

    def empty_float32(self, like: Any, shape: tuple[int, ...]) -> Any:
        with like.device:
            return self.cupy.empty(shape, np.float32)

    def grow(self, device: int, stream: int, n_bytes: int) -> Block:
        previous = self.block(device, stream)
        block = super().grow(device, stream, n_bytes)
        _blocks.of[device, stream] = block._replace(owner=(block.owner, previous.owner))
        return block

    def allocate(self, device: int, stream: int, n_bytes: int) -> Block:
        with self.cupy.cuda.Device(device):
            memory = self.cupy.cuda.alloc(max(1, n_bytes))
        return Block(memory, memory.ptr, n_bytes)

    def to_host(self, x: Any) -> Any:
        return self.cupy.asnumpy(x)


class Jax(Framework):
    """JAX arrays. JAX shows its streams to nobody: on CUDA the call runs on the default stream and waits for its result.

    Host results are made by NumPy and handed to JAX; CUDA results are written into an array that JAX has just made and
    that nobody else has seen.
    """

    def __init__(self, jax: Any) -> None:
        self.jax = jax

    def device(self, q: Any) -> int:
        return dlpack_device("q", q)

    def stream(self, device: int) -> int:
        return 0

    def _empty(self, like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        if like.device.platform == "cpu":
            return np.empty(shape, dtype)
        return self.jax.numpy.empty(shape, dtype, device=like.device).block_until_ready()

    def empty_like(self, x: Any) -> Any:
        return self._empty(x, x.shape, x.dtype)

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return self._empty(like, shape, like.dtype)

    def empty_float32(self, like: Any, shape: tuple[int, ...]) -> Any:
        return self._empty(like, shape, np.dtype(np.float32))

    def check_writable(self, name: str, x: Any) -> None:
        raise ValueError(f"{name}: got a JAX array, which is never written; leave {name} out")

    def allocate(self, device: int, stream: int, n_bytes: int) -> Block:
        gpu = next(d for d in self.jax.devices() if d.local_hardware_id == device)
        array = self.jax.numpy.empty(n_bytes, np.uint8, device=gpu).block_until_ready()
        return Block(array, array.unsafe_buffer_pointer(), n_bytes)

    def deliver(self, like: Any, array: Any, stream: int | None) -> Any:
        if isinstance(array, np.ndarray):
            return self.jax.device_put(array, like.device)
        _synchronise(stream)
        return array

    def to_host(self, x: Any) -> Any:
        return np.asarray(x)


def _synchronise(stream: int | None) -> None:
    """Waits for a CUDA stream through the driver that JAX has loaded and made current on this thread."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
    code = driver.cuStreamSynchronize(stream)
    if code != 0:
        raise RuntimeError(f"cuStreamSynchronize: CUDA driver error {code}")


_of_type: dict[type, Any] = {np.ndarray: HOST}


def framework_of(q: Any) -> Any:
    """The framework of q, remembered by type."""
    kind = type(q)
    found = _of_type.get(kind)
    if found is None:
        found = _of_type[kind] = _find(q)
    return found


def _find(q: Any) -> Any:
    if isinstance(q, np.ndarray):
        return HOST
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(q, torch.Tensor):
        return Torch(torch)
    if jax is not None and isinstance(q, jax.Array):
        return Jax(jax)
    if type(q).__module__.partition(".")[0] == "cupy":
        return CuPy(sys.modules["cupy"])
    raise ValueError(f"q: got {type(q).__module__}.{type(q).__qualname__}, expected a NumPy, torch, CuPy or JAX array")
