"""The operator's definition in float64 NumPy, one row at a time: shares no code and no idea of tiles with the library.

Also random problems in plain form (`Problem`), and the one bound results are judged by.
"""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROUNDING = {np.dtype(np.float32): 2**-24, np.dtype(np.float16): 2**-11, BFLOAT16: 2**-8}


def attention(
    q, k_cache, v_cache, *, block_table, cache_seqlens, cu_seqlens_q, softmax_scale, causal=True, window_size=(-1, -1),
    rel_logits=None, rel=None, rel_proj=None, rel_scale=None, rel_zero=0, rel_edge="zero", **_,
):  # fmt: skip
    """Returns (out, lse) in float64; rows past the last sequence are NaN."""
    q, k_cache, v_cache = (np.asarray(x).astype(np.float64) for x in (q, k_cache, v_cache))
    n_tokens, n_heads, head_dim = q.shape
    page_size, n_kv_heads = k_cache.shape[1:3]
    out = np.full((n_tokens, n_heads, head_dim), np.nan)
    lse = np.full((n_tokens, n_heads), np.nan)
    table = bias_table(rel_logits, rel, rel_proj, rel_scale)
    for b, kv_len in enumerate(cache_seqlens):
        first, last = int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1])
        for i in range(last - first):
            q_pos = i + int(kv_len) - (last - first)
            keys = [j for j in range(int(kv_len)) if visible(q_pos - j, causal, window_size)]
            row = first + i
            if not keys:
                out[row], lse[row] = 0.0, -np.inf
                continue
            pages = block_table[b][np.array(keys) // page_size]
            slots = np.array(keys) % page_size
            k_row, v_row = k_cache[pages, slots], v_cache[pages, slots]  # (n_keys, n_kv_heads, head_dim)
            for h in range(n_heads):
                kv_head = h * n_kv_heads // n_heads
                score = softmax_scale * (k_row[:, kv_head] @ q[row, h])
                if table is not None:
                    score = score + [bias(table[row, h], q_pos - j + rel_zero, rel_edge) for j in keys]
                top = score.max()
                weight = np.exp(score - top)
                out[row, h] = weight @ v_row[:, kv_head] / weight.sum()
                lse[row, h] = top + math.log(weight.sum())
    return out, lse


def visible(dist, causal, window_size):
    left, right = window_size
    return not ((causal and dist < 0) or (left >= 0 and dist > left) or (right >= 0 and -dist > right))


def bias(profile, index, edge):
    if edge == "clamp":
        return profile[min(max(index, 0), len(profile) - 1)]
    return profile[index] if 0 <= index < len(profile) else 0.0


def bias_table(rel_logits, rel, rel_proj, rel_scale):
    if rel_logits is not None:
        return np.asarray(rel_logits).astype(np.float64)
    if rel is None:
        return None
    table = np.asarray(rel).astype(np.float64) @ np.asarray(rel_proj).astype(np.float64)
    return table if rel_scale is None else table * np.asarray(rel_scale, np.float64)[:, None, None]


@dataclasses.dataclass
class Problem:
    """Shapes and options of a random problem; `arrays()` draws its tensors."""

    q_lens: list[int]
    kv_lens: list[int]
    n_q_heads: int = 2
    n_kv_heads: int = 1
    head_dim: int = 16
    page_size: int = 4
    dtype: np.dtype = np.dtype(np.float32)
    bias: str = "fused"  # none, logits, fused
    rel_extent: int = 8
    d_rel: int = 4
    rel_scale: bool = False
    causal: bool = True
    window_size: tuple[int, int] = (-1, -1)
    rel_zero: int = 0
    rel_edge: str = "zero"
    softmax_scale: float = 0.25
    seed: int = 0

    def arrays(self) -> dict:
        """The arguments of rel_attention. Pages are shuffled; what no sequence owns is NaN or a wild page number."""
        rng = np.random.default_rng(self.seed)
        dtype = np.dtype(self.dtype)

        def normal(*shape):
            return rng.standard_normal(shape).astype(np.float32).astype(dtype)

        n_tokens, n_seqs = sum(self.q_lens), len(self.q_lens)
        pages = [-(-n // self.page_size) for n in self.kv_lens]
        n_pages, max_pages = sum(pages) + 1, max([1, *pages])
        caches = [np.full((n_pages, self.page_size, self.n_kv_heads, self.head_dim), np.nan, dtype) for _ in "kv"]
        table = np.full((n_seqs, max_pages), -1, np.int32)
        order = rng.permutation(n_pages)
        for b, kv_len in enumerate(self.kv_lens):
            table[b, : pages[b]] = order[sum(pages[:b]) : sum(pages[: b + 1])]
            for j in range(kv_len):
                for cache in caches:
                    cache[table[b, j // self.page_size], j % self.page_size] = normal(self.n_kv_heads, self.head_dim)
        a = {
            "q": normal(n_tokens, self.n_q_heads, self.head_dim), "k_cache": caches[0], "v_cache": caches[1],
            "block_table": table, "cache_seqlens": np.array(self.kv_lens, np.int32),
            "cu_seqlens_q": np.cumsum([0, *self.q_lens]).astype(np.int32), "max_seqlen_q": max([0, *self.q_lens]),
            "softmax_scale": self.softmax_scale, "causal": self.causal, "window_size": self.window_size,
            "rel_zero": self.rel_zero, "rel_edge": self.rel_edge,
        }  # fmt: skip
        if self.bias == "logits":
            a["rel_logits"] = normal(n_tokens, self.n_q_heads, self.rel_extent)
        elif self.bias == "fused":
            a["rel"] = normal(n_tokens, self.n_q_heads, self.d_rel)
            a["rel_proj"] = normal(self.d_rel, self.rel_extent)
            if self.rel_scale:
                a["rel_scale"] = (1 + rng.random(n_tokens)).astype(np.float32)
        return a


def assert_right(out, arrays: dict, lse=None) -> None:
    """Each element within a few roundings of the definition.

    A 16-bit path rounds the weights before it multiplies by v, and its output once more: an error of at most a few units of
    rounding times the largest |v| of the call; float32 accumulates a few dozen roundings.
    """
    expected, expected_lse = attention(**arrays)
    dtype = np.asarray(out).dtype
    rounding = ROUNDING[dtype]
    v = np.asarray(arrays["v_cache"]).astype(np.float64)
    largest = np.abs(v[np.isfinite(v)]).max(initial=1.0)
    bound = (64 if dtype == np.float32 else 2) * rounding * largest + 1e-5
    rows = ~np.isnan(expected_lse).any(axis=-1)
    error = np.abs(np.asarray(out).astype(np.float64) - expected)[rows]
    assert np.isfinite(error).all(), "a result is not finite"
    if error.size and error.max() > bound:
        row, head, column = np.unravel_index(error.argmax(), error.shape)
        raise AssertionError(
            f"row {row} head {head} column {column}: error {error.max():.3g} above {bound:.3g};"
            f" expected {expected[rows][row, head, column]:.6g}"
        )
    if lse is not None:
        np.testing.assert_allclose(np.asarray(lse)[rows], expected_lse[rows], atol=2e-3 if rounding > 1e-6 else 2e-5)
