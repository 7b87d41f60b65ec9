"""The names of vLLM's Inkling operator, with its signatures, defaults and results: change the import, nothing else.

    from flashrel.inkling import bucket_max_seqlen_q, inkling_fa4_num_splits, inkling_fa4_rel_attention

Source: vllm/models/inkling/nvidia/ops/fa4_rel_attention.py. Its score-mod route on Hopper and its sheared route on
Blackwell become FlashRel's own choice; results agree up to rounding.
"""

from __future__ import annotations

import sys
from typing import Any

from ._abi import LIB
from ._core import rel_attention

__all__ = ["bucket_max_seqlen_q", "inkling_fa4_num_splits", "inkling_fa4_rel_attention", "use_sheared_bias"]


def bucket_max_seqlen_q(max_seqlen_q: int) -> int:
    """The smallest power of two >= max_seqlen_q; 1 for anything below 2. Keeps the number of distinct plans small."""
    return LIB.flashrel_bucket_max_seqlen_q(max_seqlen_q)


def use_sheared_bias(capability: tuple[int, int]) -> bool:
    """Whether the seed re-lays the bias before the kernel on this compute capability: majors 10 and 11."""
    return bool(LIB.flashrel_use_sheared_bias(*capability))


def _current_capability_major() -> int:
    """Compute capability major of torch's current CUDA device; 0 where there is none, as in the seed on a CPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return torch.cuda.get_device_capability()[0]


def inkling_fa4_num_splits(
    *,
    is_local: bool,
    batch_size: int,
    max_query_len: int,
    num_heads: int,
    num_kv_heads: int,
    max_kv_len: int,
    capability_major: int | None = None,
) -> int:
    """The seed's cap on key splits, bit for bit: what its kernels would use, not what FlashRel's plan does.

    1 on Hopper and on local layers; else from the number of CTAs wanted, the batch and the key length.
    `capability_major` asks for another GPU than torch's current one; the seed has no such argument.
    """
    if capability_major is None:
        capability_major = _current_capability_major()
    return LIB.flashrel_inkling_fa4_num_splits(
        is_local, batch_size, max_query_len, num_heads, num_kv_heads, max_kv_len, capability_major
    )


def inkling_fa4_rel_attention(
    q: Any,
    key_cache: Any,
    value_cache: Any,
    *,
    block_table: Any,
    cache_seqlens: Any,
    cu_seqlens_q: Any,
    max_seqlen_q: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    rel_extent: int,
    rel_logits: Any,
    num_splits: int = 32,
    out: Any | None = None,
) -> Any:
    """The seed's operator: `flashrel.rel_attention` with the bias given as rel_logits.

    Args:
        rel_extent: must be the last dimension of `rel_logits`.
        num_splits: the seed's cap for its own kernels (1 on Hopper). Must be at least 1; FlashRel splits by its own plan,
            and every number of splits gives the same answer up to rounding. `rel_attention(num_splits=...)` forces one.
        The others are described at `flashrel.rel_attention`; (-1, -1) is no window.

    Returns:
        `out` itself when given, else a new tensor. Raises ValueError with the library's sentence.
    """
    if rel_logits.shape[-1] != rel_extent:
        raise ValueError(f"rel_extent: got {rel_extent}, expected rel_logits' last dimension {rel_logits.shape[-1]}")
    if num_splits < 1:
        raise ValueError(f"num_splits: got {num_splits}, expected 1 or more")
    return rel_attention(
        q,
        key_cache,
        value_cache,
        block_table=block_table,
        cache_seqlens=cache_seqlens,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        rel_logits=rel_logits,
        out=out,
    )
