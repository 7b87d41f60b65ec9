"""The operator as torch sees it under torch.compile: flashrel::rel_attention and ::rel_attention_out, with fakes.

`flashrel.rel_attention` calls the library directly in eager mode and comes here only while torch traces. Importing this
module registers the operators; torch.ops.flashrel.* can also be called by hand, and torch.library.opcheck passes on them.
Their arguments are those of `flashrel.rel_attention`, positional, with the window as two numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _core

_ARGUMENTS = (
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor cache_seqlens, Tensor cu_seqlens_q, "
    "SymInt max_seqlen_q, SymInt? max_seqlen_k=None, float? softmax_scale=None, bool causal=True, "
    "SymInt window_left=-1, SymInt window_right=-1, Tensor? rel_logits=None, Tensor? rel=None, Tensor? rel_proj=None, "
    'Tensor? rel_scale=None, SymInt rel_zero=0, str rel_edge="zero", SymInt num_splits=0, bool deterministic=False, '
    'str backend="auto", str route="auto"'
)
_library = torch.library.Library("flashrel", "DEF")
_library.define(f"rel_attention({_ARGUMENTS}) -> (Tensor out, Tensor lse)")
_library.define(f"rel_attention_out({_ARGUMENTS}, *, Tensor(a!) out, Tensor(b!)? lse=None) -> ()")


def _write(
    q, k_cache, v_cache, block_table, cache_seqlens, cu_seqlens_q, max_seqlen_q, max_seqlen_k=None, softmax_scale=None,
    causal=True, window_left=-1, window_right=-1, rel_logits=None, rel=None, rel_proj=None, rel_scale=None, rel_zero=0,
    rel_edge="zero", num_splits=0, deterministic=False, backend="auto", route="auto", *, out, lse=None,
) -> None:  # fmt: skip
    scalars = _core.scalars_of(
        q, max_seqlen_q, max_seqlen_k, softmax_scale, causal, (window_left, window_right), rel_zero, rel_edge, num_splits,
        deterministic,
    )  # fmt: skip
    tensors = (
        q, k_cache, v_cache, block_table, cache_seqlens, cu_seqlens_q, rel_logits, rel, rel_proj, rel_scale, out, lse
    )  # fmt: skip
    _core.attend(_core.framework_of(q), None, tensors, scalars, backend, route)


def _outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


def _make(q: torch.Tensor, *arguments: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _outputs(q)
    _write(q, *arguments, **named, out=out, lse=lse)
    return out, lse


for _key in ("CPU", "CUDA"):
    _library.impl("rel_attention", _make, _key)
    _library.impl("rel_attention_out", _write, _key)
torch.library.register_fake("flashrel::rel_attention", lambda q, *_, **__: _outputs(q), lib=_library)
torch.library.register_fake("flashrel::rel_attention_out", lambda *_, **__: None, lib=_library)


def traced(
    q: Any, k_cache: Any, v_cache: Any, block_table: Any, cache_seqlens: Any, cu_seqlens_q: Any, max_seqlen_q: Any,
    max_seqlen_k: Any, softmax_scale: Any, causal: bool, window_size: Any, *rest: Any, out: Any, return_lse: bool, lse: Any,
) -> Any:  # fmt: skip
    """rel_attention inside a graph; the library's checks run when the graph does."""
    arguments = (
        q, k_cache, v_cache, block_table, cache_seqlens, cu_seqlens_q, max_seqlen_q, max_seqlen_k, softmax_scale, causal,
        *window_size, *rest,
    )  # fmt: skip
    if out is None and lse is None:
        out, lse = torch.ops.flashrel.rel_attention(*arguments)
        return (out, lse) if return_lse else out
    if out is None:
        out = q.new_empty(q.shape)
    if lse is None and return_lse:
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    torch.ops.flashrel.rel_attention_out(*arguments, out=out, lse=lse)
    return out if lse is None else (out, lse)
