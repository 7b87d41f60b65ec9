"""What flashrel.bench runs: the cases, and their tensors in the forms that FlashRel and its peers take."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F

HEAD_DIM, D_REL, PAGE = 128, 16, 128


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    batch: int
    q_len: int
    kv_len: int
    n_q_heads: int
    n_kv_heads: int
    extent: int
    window: int = -1


CPU_CASES = [
    Case("prefill 512", 1, 512, 512, 8, 1, 1024),
    Case("prefill 2048", 1, 2048, 2048, 8, 1, 1024),
    Case("local prefill 2048", 1, 2048, 2048, 8, 2, 512, 512),
    Case("decode 8192", 1, 1, 8192, 8, 1, 1024),
    Case("decode 4 x 4096", 4, 1, 4096, 8, 1, 1024),
]
CUDA_CASES = [
    Case("prefill 8K", 1, 8192, 8192, 64, 8, 1024),
    Case("local prefill 8K", 1, 8192, 8192, 64, 16, 512, 512),
    Case("chunk 2K of 32K", 1, 2048, 32768, 8, 1, 1024),
    Case("decode 1 x 64K", 1, 1, 65536, 64, 8, 1024),
    Case("decode 32 x 8K", 32, 1, 8192, 64, 8, 1024),
    Case("decode 128 x local 512", 128, 1, 8192, 64, 16, 512, 512),
]


class Tensors:
    """One case's inputs. The pages lie in order, so the same memory is also a contiguous cache for the peers."""

    def __init__(self, case: Case, device: str, dtype: torch.dtype) -> None:
        self.case, self.device = case, device
        torch.manual_seed(1)
        c = case

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)

        self.q = F.normalize(normal(c.batch * c.q_len, c.n_q_heads, HEAD_DIM).float(), dim=-1).mul(HEAD_DIM**0.5).to(dtype)
        self.k, self.v = (normal(c.batch * c.kv_len // PAGE, PAGE, c.n_kv_heads, HEAD_DIM) for _ in "kv")
        self.rel, self.rel_proj = normal(c.batch * c.q_len, c.n_q_heads, D_REL), normal(D_REL, c.extent) / 4
        n_pages = c.kv_len // PAGE
        self.common: dict[str, Any] = {
            "block_table": torch.arange(c.batch * n_pages, dtype=torch.int32, device=device).view(c.batch, n_pages),
            "cache_seqlens": torch.full((c.batch,), c.kv_len, dtype=torch.int32, device=device),
            "cu_seqlens_q": torch.arange(c.batch + 1, dtype=torch.int32, device=device) * c.q_len,
            "max_seqlen_q": c.q_len, "softmax_scale": 1 / HEAD_DIM,
            "window_size": (c.window - 1, 0) if c.window > 0 else (-1, -1),
        }  # fmt: skip
        self.rel_logits = torch.einsum("thd,de->the", self.rel, self.rel_proj)

    def by_head(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v as (batch, heads, length, head_dim) views."""
        c = self.case
        q = self.q.view(c.batch, c.q_len, c.n_q_heads, HEAD_DIM).transpose(1, 2)
        k, v = (x.view(c.batch, c.kv_len, c.n_kv_heads, HEAD_DIM).transpose(1, 2) for x in (self.k, self.v))
        return q, k, v

    def distances(self) -> torch.Tensor:
        c = self.case
        q_pos = torch.arange(c.q_len, device=self.device) + c.kv_len - c.q_len
        return q_pos[:, None] - torch.arange(c.kv_len, device=self.device)

    def dense_bias(self) -> torch.Tensor:
        """(batch, heads, q_len, kv_len): the bias, and -inf where a key is hidden."""
        c, dist = self.case, self.distances()
        table = self.rel_logits.view(c.batch, c.q_len, c.n_q_heads, c.extent).transpose(1, 2)
        bias = table.gather(3, dist.clamp(0, c.extent - 1).expand(c.batch, c.n_q_heads, -1, -1))
        bias = bias.masked_fill_((dist < 0) | (dist >= c.extent), 0)
        hidden = (dist < 0) if c.window < 0 else (dist < 0) | (dist >= c.window)
        return bias.masked_fill_(hidden, float("-inf"))

    def sampled_rows(self, n_rows: int = 6) -> list[tuple[int, int]]:
        """(sequence, row) pairs."""
        c = self.case
        return [(s * c.batch // n_rows % c.batch, s * (c.q_len - 1) // max(1, n_rows - 1)) for s in range(n_rows)]

    def expected(self, rows: list[tuple[int, int]], with_bias: bool) -> torch.Tensor:
        """The results of these rows in float32 from the same inputs."""
        c = self.case
        group, results = c.n_q_heads // c.n_kv_heads, []
        for b, i in rows:
            q = self.q[b * c.q_len + i].float().view(c.n_kv_heads, group, HEAD_DIM)
            k, v = (x.view(c.batch, c.kv_len, c.n_kv_heads, HEAD_DIM)[b].float() for x in (self.k, self.v))
            dist = i + c.kv_len - c.q_len - torch.arange(c.kv_len, device=self.device)
            table = (self.rel[b * c.q_len + i].float() @ self.rel_proj.float()).view(c.n_kv_heads, group, c.extent)
            bias = torch.where((dist >= 0) & (dist < c.extent), table[..., dist.clamp(0, c.extent - 1)], 0.0)
            score = torch.einsum("ngd,jnd->ngj", q, k) / HEAD_DIM + (bias if with_bias else 0)
            hidden = (dist < 0) if c.window < 0 else (dist < 0) | (dist >= c.window)
            weight = score.masked_fill(hidden, float("-inf")).softmax(-1)
            results.append(torch.einsum("ngj,jnd->ngd", weight, v).reshape(c.n_q_heads, HEAD_DIM))
        return torch.stack(results)
