"""attn_implementation="flashrel" for the Inkling classes of Hugging Face transformers.

    import flashrel.transformers
    flashrel.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="flashrel", dtype=torch.bfloat16)

transformers builds the relative bias as one number for every (head, query, key) before it calls an attention function:
memory grows with L^2. With this implementation the layer hands `r` and the projection to FlashRel, and no such tensor
exists; memory grows with L. Inference only, and the layer returns no attention weights. Batches with padding are served:
padding may stand on the left or the right of a row, holes inside a row and packed rows are refused.

Written against transformers 5.17. `register()` looks at the layer it replaces and refuses one that it does not know.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from ._core import rel_attention

NAME = "flashrel"
_FORWARD = ["self", "hidden_states", "attention_mask", "conv_mask", "past_key_values", "kwargs"]


def register() -> None:
    """Makes attn_implementation="flashrel" known to transformers. Other implementations run as before; calling twice is fine.

    Raises RuntimeError where the installed transformers has no Inkling, or one whose attention layer looks different.
    """
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface, modeling_utils

    try:
        from transformers.models.inkling import modeling_inkling
    except ImportError as error:
        raise RuntimeError(f"transformers {transformers.__version__}: has no models.inkling, 5.17 has") from error
    layer = modeling_inkling.InklingAttention
    original = layer.forward
    if getattr(original, "_flashrel", False):
        return
    parameters = list(inspect.signature(original).parameters)
    if parameters != _FORWARD:
        raise RuntimeError(
            f"transformers {transformers.__version__}: InklingAttention.forward takes {parameters}, expected {_FORWARD}"
        )

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Any, attention_mask: Any, *arguments: Any, **keywords: Any) -> Any:
        if self.config._attn_implementation != NAME:
            return original(self, hidden_states, attention_mask, *arguments, **keywords)
        return _forward(self, hidden_states, attention_mask, *arguments, **keywords)

    forward._flashrel = True
    layer.forward = forward
    AttentionInterface.register(NAME, _not_inkling)
    AttentionMaskInterface.register(NAME, _mask)
    # transformers takes any name with "flash" in it for a package to import; this one needs none.
    requested = modeling_utils.is_flash_attention_requested

    def is_flash_attention_requested(config: Any = None, requested_attention_implementation: Any = None, **rest: Any) -> bool:
        name = requested_attention_implementation if config is None else config._attn_implementation
        return name != NAME and requested(config, requested_attention_implementation, **rest)

    modeling_utils.is_flash_attention_requested = is_flash_attention_requested


def _not_inkling(module: Any, *_: Any, **__: Any) -> Any:
    raise ValueError(f'attn_implementation="{NAME}": got {type(module).__name__}, expected an InklingAttention layer')


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    device: Any = None,
    **_: Any,
) -> torch.Tensor | None:
    """The mask that _forward gets: None, or the 2D padding mask cut to this layer's keys. No causality, no window in it."""
    if q_length > 1 and mask_function is not None:
        # Packed rows hide neighbours from each other; nothing else does that.
        q_pos = torch.arange(1, q_length, device=device) + q_offset
        zero = torch.zeros((), dtype=torch.long, device=device)
        if not bool(mask_function(zero, zero, q_pos, q_pos - 1).all()):
            raise ValueError(f'attn_implementation="{NAME}": got packed position_ids, expected one sequence a row')
    if attention_mask is None:
        return None
    attention_mask = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
    return None if bool(attention_mask.all()) else attention_mask


def _forward(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    conv_mask: torch.Tensor | None = None,
    past_key_values: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """One attention layer: projections and short convolutions as transformers has them, then FlashRel."""
    if self.training and self.attention_dropout > 0:
        raise ValueError(f'attn_implementation="{NAME}": got attention_dropout {self.attention_dropout}, it is inference only')
    batch, q_len = hidden_states.shape[:2]
    by_head = (batch, q_len, -1, self.head_dim)
    q = self.q_norm(self.q_proj(hidden_states).view(by_head))
    k = self.k_sconv(self.k_proj(hidden_states), past_key_values=past_key_values, conv_mask=conv_mask)
    v = self.v_sconv(self.v_proj(hidden_states), past_key_values=past_key_values, conv_mask=conv_mask)
    # The convolutions run along the tokens and may leave them contiguous; FlashRel wants head_dim so.
    k, v = (x.contiguous().transpose(1, 2) for x in (self.k_norm(k.view(by_head)), v.view(by_head)))
    rel = self.r_proj(hidden_states).view(batch, q_len, self.num_heads, -1)

    first_q = first_key = 0
    if past_key_values is not None:  # asked before the update, which moves them
        _, first_key = past_key_values.get_mask_sizes(q_len, self.layer_idx)
        first_q = past_key_values.get_query_offset(self.layer_idx)
        if torch.is_tensor(first_q):
            first_q = first_q.clone()
        k, v = past_key_values.update(k, v, self.layer_idx)
    kv_len = first_q + q_len - first_key  # a static cache holds more rows than keys

    tau = None
    if not self.is_sliding and self.config.log_scaling_n_floor is not None:
        positions = torch.arange(1, q_len + 1, device=q.device) + first_q
        growth = torch.log((positions.float() / self.config.log_scaling_n_floor).clamp(min=1.0))
        tau = 1.0 + self.config.log_scaling_alpha * growth
        q = (q.float() * tau.view(1, -1, 1, 1)).to(q.dtype)
        tau = tau.expand(batch, -1)

    window = (-1, -1) if self.sliding_window is None else (self.sliding_window - 1, 0)
    attend = _attend if attention_mask is None else functools.partial(_attend_padded, _whole_rows(attention_mask, kv_len))
    out = attend(
        q, k.transpose(1, 2), v.transpose(1, 2), rel, tau, kv_len,
        rel_proj=self.rel_logits_proj.proj.to(q.dtype), softmax_scale=self.scaling, window_size=window,
    )  # fmt: skip
    return self.o_proj(out.reshape(batch, q_len, -1)), None


@functools.lru_cache(maxsize=64)
def _uniform(batch: int, q_len: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Page table and prefix sum of a batch whose rows are all q_len long: one page a row of the cache."""
    with torch.inference_mode(False):
        table = torch.arange(batch, dtype=torch.int32, device=device)[:, None]
        return table, torch.arange(0, (batch + 1) * q_len, q_len, dtype=torch.int32, device=device)[: batch + 1]


def _attend(q: Any, k: Any, v: Any, rel: Any, tau: Any, kv_len: Any, **options: Any) -> torch.Tensor:
    """q, rel (batch, q_len, ...); k, v (batch, rows, ...), of which the first kv_len are keys. Nothing is copied."""
    batch, q_len = q.shape[:2]
    table, cu_seqlens_q = _uniform(batch, q_len, q.device)
    lengths = kv_len.to(torch.int32).expand(batch) if torch.is_tensor(kv_len) else torch.full_like(cu_seqlens_q[1:], kv_len)
    out = rel_attention(
        q.flatten(0, 1), k, v,
        block_table=table, cache_seqlens=lengths, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=q_len,
        rel=rel.flatten(0, 1), rel_scale=None if tau is None else tau.reshape(-1), **options,
    )  # fmt: skip
    return out.view(q.shape)


def _whole_rows(mask: torch.Tensor, kv_len: Any) -> torch.Tensor:
    """The padding mask, checked: as long as the keys, and the tokens of every row in one piece."""
    if mask.ndim != 2 or mask.shape[1] != int(kv_len):
        raise ValueError(f"attention_mask: got shape {tuple(mask.shape)}, expected (batch, {int(kv_len)})")
    edges = mask[:, 1:] & ~mask[:, :-1]
    pieces = edges.sum(1) + mask[:, 0]
    if bool((pieces > 1).any()):
        raise ValueError("attention_mask: got a row with a hole, expected padding on the left or the right only")
    return mask


def _attend_padded(mask: Any, q: Any, k: Any, v: Any, rel: Any, tau: Any, kv_len: Any, **options: Any) -> torch.Tensor:
    """As _attend for rows with padding: the tokens of each row alone, packed; keys moved to the front of their row."""
    q_mask = mask[:, -q.shape[1] :]
    n_keys, n_queries = mask.sum(1), q_mask.sum(1)
    first = mask.int().argmax(1)
    order = (first[:, None] + torch.arange(int(n_keys.max()), device=q.device)).clamp(max=mask.shape[1] - 1)
    rows = torch.arange(len(mask), device=q.device)[:, None]
    out = torch.zeros_like(q)
    out[q_mask] = rel_attention(
        q[q_mask], k[rows, order], v[rows, order],
        block_table=rows.int(), cache_seqlens=n_keys.int(),
        cu_seqlens_q=torch.nn.functional.pad(n_queries.cumsum(0), (1, 0)).int(), max_seqlen_q=q.shape[1],
        rel=rel[q_mask], rel_scale=None if tau is None else tau[q_mask], **options,
    )  # fmt: skip
    return out
