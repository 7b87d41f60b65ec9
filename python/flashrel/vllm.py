"""vLLM's Inkling attention through FlashRel: install this package and set FLASHREL=1, nothing else changes.

    FLASHREL=1 vllm serve ...          attention with the bias computed inside: no rel_logits tensor, no projection kernel
    FLASHREL=operator vllm serve ...   only the operator is replaced; vLLM projects rel_logits as before

vLLM calls `register` in each of its processes (entry point group vllm.general_plugins). It imports nothing of vLLM: the
layer's module is patched when vLLM itself imports it. A vLLM whose layer looks different is left alone, with a warning
that says what was found. Written against vLLM 0.28 and 0.33.
"""

from __future__ import annotations

import importlib.abc
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ._arrays import HOST_DEVICE
from ._core import Schedule, place, rel_attention, schedule
from ._frameworks import framework_of

LEVELS = {"": None, "0": None, "1": "fused", "fused": "fused", "operator": "operator"}
MODULE = "vllm.models.inkling.nvidia.attention"
KERNEL_NAMES = ("_INKLING_FA4_REL_ATTENTION_KERNEL", "INKLING_FA4_REL_ATTENTION_KERNEL")
_KERNEL = [
    "q", "key_cache", "value_cache", "block_table", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale",
    "causal", "window_size", "rel_extent", "rel_logits", "num_splits", "out",
]  # fmt: skip
_PREP = [
    "qkvr", "k_weight", "v_weight", "q_norm_weight", "k_norm_weight", "rel_proj", "eps", "num_q_heads", "num_kv_heads",
    "head_dim", "d_rel", "conv_cache", "key_cache", "value_cache", "positions", "conv_block_table", "seq_idx",
    "conv_slot_mapping", "query_start", "attention_slot_mapping", "off_k", "off_v", "conv_block_size", "log_scaling",
]  # fmt: skip
_log = logging.getLogger("vllm.flashrel")


def register() -> None:
    """The entry point. Does nothing unless FLASHREL asks for it; may be called many times."""
    wanted = os.environ.get("FLASHREL", "")
    if wanted not in LEVELS:
        _log.warning("FLASHREL: got %r, expected 0, 1, fused or operator: vLLM is left alone", wanted)
        return
    level = LEVELS[wanted]
    if level is None:
        return
    if MODULE in sys.modules:
        patch(sys.modules[MODULE], level)
    elif not any(isinstance(finder, _PatchOnImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PatchOnImport(level))


class _PatchOnImport(importlib.abc.MetaPathFinder):
    """Lets the other finders find the one module, and patches it right after it ran."""

    def __init__(self, level: str) -> None:
        self.level = level

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != MODULE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            patch(module, self.level)

        spec.loader.exec_module = execute_and_patch
        return spec


def patch(module: ModuleType, level: str) -> bool:
    """Replaces the operator (and at level "fused" the preparation before it) in the layer's module. False = left alone."""
    name = next((n for n in KERNEL_NAMES if hasattr(module, n)), None)
    problem = None
    if name is None:
        problem = f"no {' or '.join(KERNEL_NAMES)}"
    elif isinstance(getattr(module, name), Kernel):
        return True
    elif (found := _parameters(getattr(module, name))) != _KERNEL:
        problem = f"an operator with the arguments {found}"
    elif level == "fused" and (found := _parameters(getattr(module, "fused_qkvr_prep", None))) != _PREP:
        problem = f"fused_qkvr_prep with the arguments {found}; FLASHREL=operator may work"
    if problem is not None:
        _log.warning("FlashRel does not know this vLLM (%s): found %s. vLLM is left alone.", _vllm_version(), problem)
        return False
    setattr(module, name, Kernel(getattr(module, name), getattr(module, "get_forward_context", None)))
    if level == "fused":
        module.fused_qkvr_prep = Preparation(module.fused_qkvr_prep)
    _log.info("FlashRel runs Inkling's attention (level %s, vLLM %s)", level, _vllm_version())
    return True


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters) if callable(function) else []


def _vllm_version() -> str:
    return getattr(sys.modules.get("vllm"), "__version__", "unknown version")


class FusedBias:
    """What travels in place of rel_logits: the layer's r (a view of qkvr), its projection, tau. Cut by tokens like a tensor."""

    def __init__(self, rel: Any, rel_proj: Any, rel_scale: Any) -> None:
        self.rel, self.rel_proj, self.rel_scale = rel, rel_proj, rel_scale

    def __getitem__(self, tokens: slice) -> FusedBias:
        return FusedBias(self.rel[tokens], self.rel_proj, None if self.rel_scale is None else self.rel_scale[tokens])


class Preparation:
    """fused_qkvr_prep without its projection: norms, convolutions and cache writes stay vLLM's.

    vLLM's function runs with a projection of 16 columns that nobody reads: its kernels have no switch to leave it out, and
    16 columns cost one tile where the layer's own cost 8 or 16.
    """

    N_COLUMNS = 16

    def __init__(self, original: Any) -> None:
        self.original = original
        parameters = inspect.signature(original).parameters
        self.defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        self.unread: dict[Any, Any] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> tuple[Any, FusedBias]:
        a = {**self.defaults, **dict(zip(_PREP, arguments)), **keywords}
        rel_proj, qkvr = a["rel_proj"], a["qkvr"]
        key = rel_proj.device, rel_proj.dtype, rel_proj.shape[0]
        if key not in self.unread:
            self.unread[key] = rel_proj.new_zeros(rel_proj.shape[0], self.N_COLUMNS)
        a["rel_proj"] = self.unread[key]
        q, _ = self.original(**a)
        first = (a["num_q_heads"] + 2 * a["num_kv_heads"]) * a["head_dim"]
        rel = qkvr[:, first : first + a["num_q_heads"] * a["d_rel"]].unflatten(1, (a["num_q_heads"], a["d_rel"]))
        tau = a["log_scaling"]
        weak = _weak_reference()
        return q, FusedBias(weak(rel), rel_proj, None if tau is None else weak(tau.reshape(-1)))


def _weak_reference() -> Callable[[Any], Any]:
    """What vLLM does to the tensors that it keeps for a replay: nothing, except while it captures a graph with breaks.

    In such a graph (VLLM_USE_BREAKABLE_CUDAGRAPH) attention runs between the pieces, on arguments kept since the capture. The
    graph owns their memory; vLLM keeps tensors weakly, so that one layer's memory serves the next, but not what stands in place
    of a tensor. The layer holds qkvr while its attention runs, as a replay does.
    """
    graphs, utilities = (sys.modules.get(f"vllm.{name}") for name in ("compilation.breakable_cudagraph", "utils.torch_utils"))
    capture = getattr(graphs, "BreakableCUDAGraphCapture", None)
    if capture is None or not capture.is_active():
        return lambda tensor: tensor
    return utilities.weak_ref_tensor


class _Step(threading.local):
    """The forward pass that runs in this thread, and its schedules: one for each kind of layer."""

    context: Any = None
    made: dict[Any, tuple[Schedule, Any]] = {}


class Kernel:
    """Stands where vLLM's FA4 kernel object stood. num_splits is that kernel's own cap: FlashRel's plan splits by itself.

    `forward_context` is vLLM's get_forward_context: it returns one object for all layers of one forward pass, which is how
    long a schedule is good for. Without it every layer makes its own.
    """

    def __init__(self, original: Any, forward_context: Any = None) -> None:
        self.original, self.forward_context = original, forward_context
        self.step = _Step()

    def register_warmup(self) -> None:
        """Nothing to compile before the first call."""

    def __call__(
        self, q: Any, key_cache: Any, value_cache: Any, *, block_table: Any, cache_seqlens: Any, cu_seqlens_q: Any,
        max_seqlen_q: int, softmax_scale: float, causal: bool, window_size: tuple[int, int], rel_extent: int,
        rel_logits: Any, num_splits: int = 32, out: Any = None,
    ) -> Any:  # fmt: skip
        bias = (
            {"rel": rel_logits.rel, "rel_proj": rel_logits.rel_proj, "rel_scale": rel_logits.rel_scale}
            if isinstance(rel_logits, FusedBias)
            else {"rel_logits": rel_logits}
        )
        arguments = {
            "block_table": block_table, "cache_seqlens": cache_seqlens, "cu_seqlens_q": cu_seqlens_q,
            "max_seqlen_q": max_seqlen_q, "softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, **bias,
        }  # fmt: skip
        shared = self._schedule(q, key_cache, value_cache, arguments)
        try:
            return rel_attention(q, key_cache, value_cache, **arguments, schedule=shared, out=out)
        except ValueError:
            if shared is None:
                raise
        return rel_attention(q, key_cache, value_cache, **arguments, out=out)  # a layer whose plan differs, or a real error

    def _schedule(self, q: Any, key_cache: Any, value_cache: Any, arguments: dict[str, Any]) -> Schedule | None:
        """The schedule that layers like this one share in this pass. The library refuses it where a layer's plan differs."""
        context = None if self.forward_context is None else self.forward_context()
        if context is None:
            return None
        if self.step.context is not context:
            self.step.context, self.step.made = context, {}
        framework = framework_of(q)
        device, stream = place(framework, q, None)
        lengths = arguments["block_table"], arguments["cache_seqlens"], arguments["cu_seqlens_q"]
        capturing = device != HOST_DEVICE and framework.is_capturing()
        key = (*map(id, lengths), q.shape, arguments["max_seqlen_q"], arguments["window_size"], stream, capturing)
        if key not in self.step.made:
            # The lengths are kept so that no other tensor gets their identity while this pass runs.
            self.step.made[key] = schedule(q, key_cache, value_cache, **arguments), lengths
        return self.step.made[key][0]
