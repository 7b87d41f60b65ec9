"""The operator for arrays of any framework: checks nothing itself, asks the library, raises the library's sentence."""

from __future__ import annotations

import ctypes
import inspect
import struct
import sys
from typing import Any, NamedTuple

from . import _abi
from ._arrays import HOST_DEVICE, place_name, read
from ._frameworks import HOST, Block, framework_of

Array = Any  # a NumPy, torch, CuPy or JAX array; each argument's shape and dtype are in flashrel.h and in the docstrings

_PACK = _abi.ATTENTION_ARGS.pack
_SIZE = _abi.ATTENTION_ARGS.size
_ATTENTION = _abi.LIB.flashrel_attention
_OUT = _abi.ATTENTION_TENSORS.index("out")
_NOWHERE = (0, 0, 0)  # workspace, its bytes and the stream of a call that is only packed


def _name_address(name: str | None, kept: list[Any]) -> int:
    if name is None or name == "auto":
        return 0
    text = ctypes.create_string_buffer(str(name).encode())
    kept.append(text)
    return ctypes.addressof(text)


class _Call(NamedTuple):
    """One call as the ABI has it. `kept` holds what the packed struct points to and nobody else keeps alive."""

    args: Any  # flashrel_attention_args: bytes, or memory that C has filled
    device: int
    stream: int
    framework: Any
    kept: list[Any]


_SCALAR_FIELDS = {
    "max_seqlen_q": "q", "max_seqlen_k": "q", "softmax_scale": "d", "causal": "i", "rel_edge": "i", "window_left": "q",
    "window_right": "q", "rel_zero": "q", "num_splits": "i", "deterministic": "i", "validate": "i",
}  # fmt: skip
_EXPECTED = {"d": "a number", "i": "a 32-bit integer", "q": "a 64-bit integer"}


def scalars_of(
    q: Array, max_seqlen_q: int, max_seqlen_k: int | None, softmax_scale: float | None, causal: bool,
    window_size: tuple[int, int], rel_zero: int, rel_edge: str, num_splits: int, deterministic: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """The scalars in the order of the C struct, with the defaults that Python writes as None."""
    if softmax_scale is None:
        head_dim = q.shape[-1] if len(q.shape) else 0
        softmax_scale = 1.0 / head_dim if head_dim else 1.0
    edge = _abi.EDGES.get(rel_edge)
    if edge is None:
        raise ValueError(f"rel_edge: got {rel_edge!r}, expected 'zero' or 'clamp'")
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(f"window_size: got {window_size!r}, expected (left, right)") from None
    if max_seqlen_k is None:
        max_seqlen_k = -1
    return max_seqlen_q, max_seqlen_k, softmax_scale, causal, edge, left, right, rel_zero, num_splits, deterministic


def _scalar_error(scalars: tuple[Any, ...]) -> ValueError:
    """Names the scalar that does not fit its field of the C struct."""
    for (name, field), value in zip(_SCALAR_FIELDS.items(), scalars):
        try:
            struct.pack(field, value)
        except struct.error:
            return ValueError(f"{name}: got {value!r}, expected {_EXPECTED[field]}")
    return ValueError("shape or stride: got a number that is not a 64-bit integer")


def prepare(
    q: Array, stream: int | None, tensors: tuple[Array | None, ...], scalars: tuple[Any, ...], backend: str, route: str,
    validate: bool = False, schedule: Schedule | None = None,
) -> _Call:  # fmt: skip
    """Packs the arguments. Only what the C struct cannot say is checked here; an `out` of None is for calls that only plan."""
    framework = framework_of(q)
    device, stream = place(framework, q, stream)
    kept: list[Any] = []
    addresses = (
        0 if backend == "auto" else _name_address(backend, kept), 0 if route == "auto" else _name_address(route, kept),
        0 if schedule is None else schedule.address(device),
    )  # fmt: skip
    if framework.adapter is not None and tensors[_OUT] is not None and not validate:
        args: Any = _abi.AttentionArgs()
        if framework.adapter.read((*tensors, device, *scalars, *addresses, *_NOWHERE), args):
            return _Call(args, device, stream, framework, kept)
    head = _SIZE, _abi.HOST if device == HOST_DEVICE else _abi.CUDA, device
    scalars = (*scalars, validate and device == HOST_DEVICE)
    try:
        args = _PACK(*head, *_read_all(tensors, device, stream), *scalars, *addresses)
    except struct.error:
        raise _scalar_error(scalars) from None
    return _Call(args, device, stream, framework, kept)


def place(framework: Any, q: Array, stream: int | None) -> tuple[int, int]:
    """(device, stream): where q lives, and the stream that was asked for or is current there."""
    device = framework.device(q)
    if stream is None:
        stream = framework.stream(device) if device != HOST_DEVICE else 0
    return device, stream


def _read_all(tensors: tuple[Any, ...], device: int, stream: int) -> list[int]:
    """The numbers of the 12 tensors, read in Python: any framework, and every sentence about what cannot be read."""
    numbers: list[int] = []
    for name, x in zip(_abi.ATTENTION_TENSORS, tensors):
        if x is not None or name in _abi.REQUIRED_TENSORS:
            numbers += read(name, x, device, stream)
        else:
            numbers += _unread_like(numbers[:11]) if name == "out" else _abi.ABSENT
    return numbers


def _unread_like(q: list[int]) -> tuple[int, ...]:
    """An output of q's shape for calls that only plan: its address is never followed, it only has to be no input's."""
    _, dtype, rank, *shape = q[:7]
    return (256, dtype, rank, *shape, shape[1] * shape[2], shape[2], 1, 0)


def attend(
    framework: Any, stream: int | None, tensors: tuple[Array | None, ...], scalars: tuple[Any, ...], backend: str, route: str,
    validate: bool = False, schedule: Schedule | None = None,
) -> None:  # fmt: skip
    """Runs the operator into the last two of `tensors`, which are in the order of the struct; `framework` is that of q."""
    q = tensors[0]
    adapter = framework.adapter
    if adapter is not None and backend == "auto" == route and not validate:
        device, stream = place(framework, q, stream)
        block = (HOST if device == HOST_DEVICE else framework).block(device, stream)
        shared = 0 if schedule is None else schedule.address(device)
        code = adapter.call((*tensors, device, *scalars, 0, 0, shared, block.address, block.n_bytes, stream))
        if code == _abi.OK:
            return
        # Else nothing was launched: the other way grows the workspace, or says what is wrong.
    call = prepare(q, stream, tensors, scalars, backend, route, validate, schedule)
    if validate and call.device != HOST_DEVICE:
        _validate_on_host(call, tensors)
    framework = HOST if call.device == HOST_DEVICE else framework
    block = framework.block(call.device, call.stream)
    code = _ATTENTION(call.args, block.address, block.n_bytes, call.stream)
    if code == _abi.WORKSPACE:  # the library refuses one that is too small before it launches anything
        block = framework.grow(call.device, call.stream, _abi.workspace_bytes(call.args))
        code = _ATTENTION(call.args, block.address, block.n_bytes, call.stream)
    if code != _abi.OK:
        _abi.check(code)


def _validate_on_host(call: _Call, tensors: tuple[Array | None, ...]) -> None:
    """Checks lengths and page numbers of CUDA memory as the library checks host memory.

    The library is asked to plan a host call with the same shapes: it reads the three int32 arrays (here: host copies) and
    no other memory.
    """
    values = list(_abi.ATTENTION_ARGS.unpack(call.args))
    values[1] = _abi.HOST
    names = ("block_table", "cache_seqlens", "cu_seqlens_q")
    indices = [_abi.ATTENTION_TENSORS.index(name) for name in names]
    copies = [framework_of(tensors[i]).to_host(tensors[i]) for i in indices]  # alive until the library has read them
    for name, i, copy in zip(names, indices, copies):
        first = 3 + 11 * i
        values[first : first + 11] = read(name, copy, HOST_DEVICE, 0)
    values[-4:] = 1, 0, 0, 0  # validate, and the host's own choice of backend, route and schedule
    _abi.workspace_bytes(_PACK(*values))


def _refuse_gradients(**arrays: Array | None) -> None:
    for name, x in arrays.items():
        if x is not None and getattr(x, "requires_grad", False):
            raise ValueError(f"{name}: requires a gradient, FlashRel computes none; call it under torch.no_grad()")


def rel_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    *,
    block_table: Array,
    cache_seqlens: Array,
    cu_seqlens_q: Array,
    max_seqlen_q: int,
    max_seqlen_k: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    rel_logits: Array | None = None,
    rel: Array | None = None,
    rel_proj: Array | None = None,
    rel_scale: Array | None = None,
    rel_zero: int = 0,
    rel_edge: str = "zero",
    num_splits: int = 0,
    deterministic: bool = False,
    backend: str = "auto",
    route: str = "auto",
    out: Array | None = None,
    return_lse: bool = False,
    lse: Array | None = None,
    validate: bool = False,
    stream: int | None = None,
    schedule: Schedule | None = None,
) -> Any:
    """Paged, variable-length, grouped-query attention with a learned, banded relative bias.

        q_pos = i + kv_len - q_len                           query row i of its sequence; the last row is the newest key
        dist  = q_pos - j                                    key j of the same sequence
        score = softmax_scale * dot(q[i,h], k[j, h / group]) + bias(i, h, dist)
        out   = sum_j softmax_j(score | visible) * v[j, h / group],   lse = ln sum_j exp(score)
        bias  = L[i,h,dist + rel_zero] inside [0, rel_extent), elsewhere 0 (rel_edge "zero") or L's nearest entry ("clamp")
        L     = rel_logits[i,h,:],   or rel_scale[i] * rel[i,h,:] @ rel_proj,   or absent

    Arrays are NumPy, torch (CPU, CUDA), CuPy or JAX; all in the memory of `q`, all owned by the caller, read in place.
    The last dimension of floating-point arrays is contiguous, every other stride is free.
    T is bfloat16, float16, and in host memory float32. NumPy has bfloat16 as ml_dtypes.bfloat16, or as its bits in uint16.

    Args:
        q: (n_tokens, n_q_heads, head_dim), T.
        k_cache, v_cache: (n_pages, page_size, n_kv_heads, head_dim), T; n_q_heads is a multiple of n_kv_heads. Strides are
            separate, so K and V may be the halves of one tensor.
        block_table: (n_seqs, max_pages), int32; entry p of row b is the page of keys [p, p + 1) * page_size. Entries past
            kv_len are never used.
        cache_seqlens: (n_seqs), int32: kv_len of each sequence; 0 is legal.
        cu_seqlens_q: (n_seqs + 1), int32: prefix sum of q_len from 0; rows of `out` past its last entry stay untouched.
        max_seqlen_q: upper bound of q_len; the plan depends on bounds, never on the lengths themselves.
        max_seqlen_k: upper bound of kv_len; None = max_pages * page_size.
        softmax_scale: multiplies q.k and not the bias; None = 1 / head_dim, as in the Inkling models (not its root).
        causal: hides keys newer than the row.
        window_size: (left, right), -1 = unlimited; (511, 0) is 512 keys, the row's own included.
        rel_logits: (n_tokens, n_q_heads, rel_extent), bfloat16, float16 or float32; token stride 0 broadcasts one table.
        rel, rel_proj: (n_tokens, n_q_heads, d_rel) and (d_rel, rel_extent), T: the fused bias, never written to memory.
        rel_scale: (n_tokens), float32, optional factor of the fused bias.
        rel_zero, rel_edge: the index of distance 0 in L, and what lies outside of L: "zero" or "clamp".
        num_splits: 0 = automatic, n = at most n key ranges a row. The answer is the same up to rounding.
        deterministic: a sequence's bits do not depend on its neighbours. (Same call, same bits, always holds.)
        backend: "auto", or a name from `info()`; a forced backend that cannot serve is an error.
        route: "auto", "score_mod" or "sheared" (with rel_logits), "fused" (with rel).
        out: like q, written and returned; may be strided, may not be an input. None = a new array.
        return_lse: also return lse, (n_tokens, n_q_heads), float32.
        lse: where to write it, any strides; None = a new array, if `return_lse` asks for one.
        validate: a debug switch: also checks the lengths and every page number used, before the run. On CUDA it copies the
            three int32 arrays to the host and waits for them.
        stream: the CUDA stream as an integer. None = the current stream of torch or CuPy; JAX: the default stream.
        schedule: from `flashrel.schedule`, shared by calls that differ in data only; None = the call makes its own.

    Returns:
        `out`, or `(out, lse)` with `return_lse` or `lse`. Rows without a visible key give 0 and -inf.

    On CUDA the call is asynchronous and safe under torch.cuda.graph: a replay after lengths, tables and data changed in
    place is right as long as the bounds hold. Workspace is kept per thread, device and stream (`clear_workspaces`).
    JAX on CUDA waits for the result. Under torch.compile the call is one operator, flashrel::rel_attention.

    Raises:
        ValueError: the library's sentence, naming the argument, what was found, what was expected. Nothing was written.
        RuntimeError: CUDA or the operating system reported an error.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        if torch.compiler.is_compiling():
            from . import _torch

            return _torch.traced(
                q, k_cache, v_cache, block_table, cache_seqlens, cu_seqlens_q, max_seqlen_q, max_seqlen_k, softmax_scale,
                causal, window_size, rel_logits, rel, rel_proj, rel_scale, rel_zero, rel_edge, num_splits, deterministic,
                backend, route, out=out, return_lse=return_lse, lse=lse,
            )  # fmt: skip
        if torch.is_grad_enabled():
            _refuse_gradients(
                q=q, k_cache=k_cache, v_cache=v_cache, rel_logits=rel_logits, rel=rel, rel_proj=rel_proj, rel_scale=rel_scale
            )
    framework = framework_of(q)
    if out is None:
        out = framework.empty_like(q)
    else:
        framework.check_writable("out", out)
    if lse is not None:
        framework.check_writable("lse", lse)
    elif return_lse:
        lse = framework.empty_float32(q, q.shape[:2])
    scalars = scalars_of(
        q, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, rel_zero, rel_edge, num_splits, deterministic
    )
    tensors = (
        q, k_cache, v_cache, block_table, cache_seqlens, cu_seqlens_q, rel_logits, rel, rel_proj, rel_scale, out, lse
    )  # fmt: skip
    attend(framework, stream, tensors, scalars, backend, route, validate, schedule)
    out = framework.deliver(q, out, stream)
    return out if lse is None else (out, framework.deliver(q, lse, stream))


_SIGNATURE = inspect.signature(rel_attention)
_NAMES = _SIGNATURE.parameters.keys()
_DEFAULTS = {name: p.default for name, p in _SIGNATURE.parameters.items() if p.default is not p.empty}
_SCALAR_NAMES = list(inspect.signature(scalars_of).parameters)[1:]


def plan(q: Array, k_cache: Array, v_cache: Array, **arguments: Any) -> dict[str, Any]:
    """What `rel_attention` would do with the same arguments, without doing it.

    Returns the library's plan: the backend, every refusal with its reason (`considered`), route, tiles, splits, the
    workspace ledger, bytes, flops and the predicted time. Depends on shapes, strides, bounds and options only: no memory is
    read, unless `validate` asks for it.
    """
    return _abi.json_of(_abi.LIB.flashrel_plan_json, _prepare_only(q, k_cache, v_cache, **arguments).args)


def _prepare_only(q: Array, k_cache: Array, v_cache: Array, **arguments: Any) -> _Call:
    """The call that rel_attention would make, packed."""
    given = {**_DEFAULTS, "q": q, "k_cache": k_cache, "v_cache": v_cache, **arguments}
    if given.keys() != _NAMES:
        _SIGNATURE.bind(q, k_cache, v_cache, **arguments)  # raises; always, it would cost four times all the rest
    tensors = (*(given[name] for name in _abi.ATTENTION_TENSORS[:_OUT]), given["out"], None)
    scalars = scalars_of(q, *(given[name] for name in _SCALAR_NAMES))
    return prepare(
        q, given["stream"], tensors, scalars, given["backend"], given["route"], given["validate"], given["schedule"]
    )  # fmt: skip


class Schedule:
    """Which CTA or thread takes which rows and keys: made by `flashrel.schedule`, taken by `rel_attention(schedule=...)`."""

    def __init__(self, device: int, block: Block) -> None:
        self._device, self._block = device, block
        self._buffer = _abi.ScheduleBuffer(block.address, block.n_bytes, 0)

    def address(self, device: int) -> int:
        """Of the C struct, for a call on `device`."""
        if device != self._device:
            raise ValueError(f"schedule: lives on {place_name(self._device)}, expected {place_name(device)} like q")
        return ctypes.addressof(self._buffer)


def schedule(q: Array, k_cache: Array, v_cache: Array, *, into: Schedule | None = None, **arguments: Any) -> Schedule:
    """The schedule of `rel_attention` with the same arguments, for all calls of one step that differ in data only.

        step = flashrel.schedule(q, k_cache, v_cache, **lengths, rel=rel, rel_proj=rel_proj)       once a step and kind of layer
        out = flashrel.rel_attention(q, k_cache, v_cache, **lengths, rel=rel, rel_proj=rel_proj, schedule=step)     once a layer

    It is made of cu_seqlens_q, cache_seqlens, shapes, bounds, masks and options; of the other arrays only shape, dtype,
    strides and alignment count. A call whose plan differs refuses it (ValueError). That lengths have not changed since is
    the caller's duty, and that calls which share it do not overlap in time. Under torch.compile it is left unused.

    Args:
        q, k_cache, v_cache, arguments: as for `rel_attention`; `out` and `return_lse` do not matter.
        into: a schedule of an earlier step, whose memory is used again if it is large enough, and which is then returned.

    On CUDA it is asynchronous, on the stream of the call. Captured by torch.cuda.graph, a replay makes the schedule of its
    own lengths. Errors as in `rel_attention`.
    """
    call = _prepare_only(q, k_cache, v_cache, **arguments)
    n_bytes = _abi.size_of(_abi.LIB.flashrel_schedule_bytes, call.args)
    if into is None or into._device != call.device or into._block.n_bytes < n_bytes:
        framework = HOST if call.device == HOST_DEVICE else call.framework
        into = Schedule(call.device, framework.allocate(call.device, call.stream, n_bytes))
    _abi.check(_abi.LIB.flashrel_schedule(call.args, ctypes.byref(into._buffer), call.stream))
    return into


def info() -> dict[str, Any]:
    """The library's build, the CPU, the GPUs and the backends, each with the reason why it is off.

    `torch_adapter` is how torch tensors reach the library: "tvm-ffi", "ctypes", or "python" where they are read in Python and
    then go through ctypes; None while torch is not imported.
    """
    torch = sys.modules.get("torch")
    name = None
    if torch is not None:
        adapter = framework_of(torch.empty(0)).adapter
        name = "python" if adapter is None else adapter.name
    return {**_abi.json_of(_abi.LIB.flashrel_info_json), "torch_adapter": name}


def set_num_threads(n_threads: int) -> None:
    """Workers of the CPU backend; 0 = the CPUs that this process may use (also FLASHREL_NUM_THREADS)."""
    _abi.check(_abi.LIB.flashrel_set_num_threads(n_threads))


def version() -> str:
    """The library's version, e.g. "0.1.0"."""
    return _abi.LIB.flashrel_version().decode()
