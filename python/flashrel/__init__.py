"""FlashRel: paged, variable-length, grouped-query attention with a learned, banded relative bias.

    import flashrel
    out = flashrel.rel_attention(q, k_cache, v_cache, block_table=..., cache_seqlens=..., cu_seqlens_q=...,
                                 max_seqlen_q=..., rel=rel, rel_proj=rel_proj)

One function for NumPy, torch (CPU, CUDA), CuPy and JAX. `flashrel.inkling` has the names and signatures of vLLM's Inkling
operator, `flashrel.transformers.register()` makes attn_implementation="flashrel" work, and with this package installed
`FLASHREL=1 vllm serve ...` runs Inkling's attention through it. `python -m flashrel.bench` measures against the peers.
"""

from ._core import Schedule, info, plan, rel_attention, schedule, set_num_threads, version
from ._frameworks import clear_workspaces
from ._merge import merge

__version__ = version()
__all__ = [
    "Schedule", "clear_workspaces", "info", "merge", "plan", "rel_attention", "schedule", "set_num_threads", "version",
]  # fmt: skip
