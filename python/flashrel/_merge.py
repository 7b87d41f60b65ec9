"""Merging results over disjoint keys: flashrel_merge for arrays of any framework."""

from __future__ import annotations

from typing import Any

from . import _abi
from ._arrays import HOST_DEVICE, read
from ._core import place
from ._frameworks import framework_of

Array = Any


def merge(
    parts_out: Array,
    parts_lse: Array,
    *,
    out: Array | None = None,
    return_lse: bool = False,
    stream: int | None = None,
) -> Any:
    """Merges results over disjoint key sets of the same rows: what split-KV, prefix caches and context parallelism need.

        lse = ln sum_p exp(lse_p),   out = sum_p exp(lse_p - lse) * out_p        (0 and -inf where every lse_p is -inf)

    Args:
        parts_out: (n_parts, n_rows, n_heads, head_dim), float32, float16 or bfloat16. A part whose lse is -inf may hold
            anything.
        parts_lse: (n_parts, n_rows, n_heads), float32, natural logarithm.
        out: (n_rows, n_heads, head_dim), any of the three types; None = a new array of the type of `parts_out`.
        return_lse: also return lse, (n_rows, n_heads), float32.
        stream: as in `rel_attention`.

    Returns:
        `out`, or `(out, lse)`. Deterministic; uses no workspace. Errors as in `rel_attention`.
    """
    framework = framework_of(parts_out)
    device, stream = place(framework, parts_out, stream)
    shown = read("parts_out", parts_out, device, stream)
    if out is None:
        out = framework.empty(parts_out, tuple(shown[4:7]))
    else:
        framework.check_writable("out", out)
    lse = framework.empty_float32(parts_out, tuple(shown[4:6])) if return_lse else None
    args = _abi.MERGE_ARGS.pack(
        _abi.MERGE_ARGS.size, _abi.HOST if device == HOST_DEVICE else _abi.CUDA, device,
        *shown,
        *read("parts_lse", parts_lse, device, stream),
        *read("out", out, device, stream),
        *(_abi.ABSENT if lse is None else read("lse", lse, device, stream)),
    )  # fmt: skip
    _abi.check(_abi.LIB.flashrel_merge(args, stream))
    out = framework.deliver(parts_out, out, stream)
    return (out, framework.deliver(parts_out, lse, stream)) if return_lse else out
