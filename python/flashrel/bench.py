"""python -m flashrel.bench: FlashRel beside the peers that this machine has, interleaved, checked in the same run.

Peers: torch SDPA with a dense bias (CPU and CUDA), FlexAttention with a gather of the bias, vLLM's Hopper operator (FA4 with a
score_mod; --fa4 names a folder made by tools/fa4_peer.py), cuDNN SDPA without any bias (a bound, not a peer). Every result that
has the bias is compared with a float32 computation of sampled rows. Writes JSON with the machine, versions, medians and
quartiles; with --figure also a picture (matplotlib). `--call-cost` measures host time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import logging
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import flashrel

HEAD_DIM, D_REL, PAGE = 128, 16, 128
IN_A_ROW = 16  # calls of one way, then of the next
DENSE_BIAS_LIMIT = 4 << 30  # bytes: above it SDPA with a dense bias is left out


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
        self.common = {
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

    def expected_rows(self, n_rows: int = 6) -> tuple[list[tuple[int, int]], torch.Tensor]:
        """Sampled (sequence, row) pairs and their results in float32 from the same inputs."""
        c = self.case
        rows = [(s * c.batch // n_rows % c.batch, s * (c.q_len - 1) // max(1, n_rows - 1)) for s in range(n_rows)]
        group, results = c.n_q_heads // c.n_kv_heads, []
        for b, i in rows:
            q = self.q[b * c.q_len + i].float().view(c.n_kv_heads, group, HEAD_DIM)
            k, v = (x.view(c.batch, c.kv_len, c.n_kv_heads, HEAD_DIM)[b].float() for x in (self.k, self.v))
            dist = i + c.kv_len - c.q_len - torch.arange(c.kv_len, device=self.device)
            table = (self.rel[b * c.q_len + i].float() @ self.rel_proj.float()).view(c.n_kv_heads, group, c.extent)
            bias = torch.where((dist >= 0) & (dist < c.extent), table[..., dist.clamp(0, c.extent - 1)], 0.0)
            score = torch.einsum("ngd,jnd->ngj", q, k) / HEAD_DIM + bias
            hidden = (dist < 0) if c.window < 0 else (dist < 0) | (dist >= c.window)
            weight = score.masked_fill(hidden, float("-inf")).softmax(-1)
            results.append(torch.einsum("ngj,jnd->ngd", weight, v).reshape(c.n_q_heads, HEAD_DIM))
        return rows, torch.stack(results)


# ---------------------------------------------------------------- the peers: name -> function giving (tokens, heads, head_dim)


def flashrel_peers(t: Tensors) -> dict[str, Callable[[], torch.Tensor]]:
    out = torch.empty_like(t.q)

    def fused() -> torch.Tensor:
        return flashrel.rel_attention(t.q, t.k, t.v, **t.common, rel=t.rel, rel_proj=t.rel_proj, out=out)

    def logits() -> torch.Tensor:
        return flashrel.rel_attention(t.q, t.k, t.v, **t.common, rel_logits=t.rel_logits, out=out)

    def none() -> torch.Tensor:
        return flashrel.rel_attention(t.q, t.k, t.v, **t.common, out=out)

    return {"flashrel fused": fused, "flashrel logits": logits, "flashrel (no bias)": none}


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(0, 1)


def sdpa_peers(t: Tensors) -> dict[str, Callable[[], torch.Tensor]]:
    c, peers = t.case, {}
    q, k, v = t.by_head()
    scale = 1 / HEAD_DIM
    if c.batch * c.n_q_heads * c.q_len * c.kv_len * 8 <= DENSE_BIAS_LIMIT:
        bias = t.dense_bias()
        peers["SDPA, dense bias"] = lambda: _flat(
            F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=True)
        )
    if t.device == "cuda" and c.q_len == c.kv_len and c.window < 0:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def cudnn() -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return _flat(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True))

        peers["cuDNN SDPA (no bias)"] = cudnn
    return peers


def flex_peers(t: Tensors) -> dict[str, Callable[[], torch.Tensor]]:
    if t.device != "cuda":
        return {}
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    c = t.case
    q, k, v = t.by_head()
    table = t.rel_logits.view(c.batch, c.q_len, c.n_q_heads, c.extent)
    ahead = c.kv_len - c.q_len

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        dist = q_idx + ahead - kv_idx
        bias = table[b, q_idx, h, dist.clamp(0, c.extent - 1)]
        return score + torch.where((dist >= 0) & (dist < c.extent), bias, 0.0)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        dist = q_idx + ahead - kv_idx
        return (dist >= 0) & (dist < c.window) if c.window > 0 else dist >= 0

    logging.getLogger("torch._inductor").setLevel(logging.CRITICAL)  # a failure is reported once, not with its whole kernel
    blocks = create_block_mask(mask, None, None, c.q_len, c.kv_len, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return {
        "FlexAttention": lambda: _flat(
            compiled(q, k, v, score_mod=score_mod, block_mask=blocks, scale=1 / HEAD_DIM, enable_gqa=True)
        )
    }


def fa4_peers(t: Tensors, folder: str | None) -> dict[str, Callable[[], torch.Tensor]]:
    """What vLLM runs on Hopper, from kernels that tools/fa4_peer.py compiled; rel_logits are made outside of it."""
    if t.device != "cuda" or folder is None:
        return {}
    spec = importlib.util.spec_from_file_location("fa4_peer", f"{folder}/fa4_peer.py")
    fa4_peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fa4_peer)
    c, common = t.case, t.common
    run = fa4_peer.load(folder, c.n_q_heads, c.n_kv_heads, c.extent, max(0, c.window), PAGE, c.q_len)
    lengths = common["block_table"], common["cache_seqlens"], common["cu_seqlens_q"]
    out = torch.empty_like(t.q)
    return {
        "FA4 score_mod (vLLM)": lambda: run(t.q, t.k, t.v, *lengths, t.rel_logits, out, 1 / HEAD_DIM),
        "rel_logits by einsum": lambda: torch.einsum("thd,de->the", t.rel, t.rel_proj),
    }


# ---------------------------------------------------------------- measuring


class Timer:
    """Seconds of one call: CUDA events after the L2 cache was overwritten, or the wall clock on the CPU.

    The GPU sleeps first, so that a call's launches are all queued when it begins: host time is measured by --call-cost.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device=device) if device == "cuda" else None

    def __call__(self, function: Callable[[], Any]) -> float:
        if self.flush is None:
            start = time.perf_counter()
            function()
            return time.perf_counter() - start
        self.flush.zero_()
        torch.cuda._sleep(1_000_000)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def run_case(case: Case, device: str, dtype: torch.dtype, rounds: int, fa4: str | None = None) -> dict[str, Any]:
    tensors, timer = Tensors(case, device, dtype), Timer(device)
    rows, expected = tensors.expected_rows()
    peers, errors, left_out = {}, {}, {}
    makers = {"flashrel": flashrel_peers, "SDPA": sdpa_peers, "FlexAttention": flex_peers}
    makers["FA4"] = functools.partial(fa4_peers, folder=fa4)
    for maker, make in makers.items():
        try:
            made = make(tensors)
        except Exception as error:  # a peer that this machine cannot run is reported, not fatal
            left_out[maker] = f"{type(error).__name__}: {error}"[:300]
            continue
        for name, function in made.items():
            try:
                out = function()  # also warms up: compilation, workspaces
            except Exception as error:
                left_out[name] = f"{type(error).__name__}: {error}"[:300]
                continue
            if "no bias" not in name and "rel_logits" not in name:
                got = torch.stack([out[b * case.q_len + i] for b, i in rows]).float()
                errors[name] = float((got - expected).abs().max())
                assert errors[name] < 3e-2 * float(expected.abs().max().clamp(min=1)), f"{case.name}: {name} is wrong"
            peers[name] = function
    samples: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, function in peers.items():
            samples[name].append(timer(function))
    results = {}
    for name, values in samples.items():
        low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        results[name] = {"median_us": median * 1e6, "quartiles_us": [low * 1e6, high * 1e6], "max_error": errors.get(name)}
    return {"case": dataclasses.asdict(case), "results": results, "left_out": left_out}


def ways_of_calling(device: str) -> dict[str, Callable[[], Any]]:
    """Every way into the library with the same 12 tensors: one row that no sequence owns, so that nothing is computed.

    "C ABI" is flashrel_attention on a struct that is filled already: what the library itself costs, launches included.
    """
    from . import _abi, _adapter, _core, _torch  # noqa: F401  the last registers the operators

    t = Tensors(Case("empty", 1, 1, PAGE, 8, 1, 64), device, torch.bfloat16)
    t.common["cu_seqlens_q"].zero_()
    bias = {"rel": t.rel, "rel_proj": t.rel_proj, "rel_scale": torch.ones(1, device=device)}
    out, lse = torch.empty_like(t.q), torch.empty(t.q.shape[:2], device=device)
    framework = flashrel._frameworks.framework_of(t.q)
    step = flashrel.schedule(t.q, t.k, t.v, **t.common, **bias)

    def through(adapter: Any, **changes: Any) -> Callable[[], Any]:
        arguments = {**t.common, **bias, "out": out, "lse": lse, **changes}

        def call() -> Any:
            framework.adapter = adapter
            return flashrel.rel_attention(t.q, t.k, t.v, **arguments)

        return call

    by_ctypes = _adapter.by_ctypes(torch)
    through(by_ctypes)()  # its workspace serves the C call as well
    first = t.q, t.k, t.v, t.common["block_table"], t.common["cache_seqlens"], t.common["cu_seqlens_q"]
    operator, scalars = torch.ops.flashrel.rel_attention_out.default, (1, None, 1 / HEAD_DIM, True, -1, -1)
    packed = _core.prepare(
        t.q, None, (*first, None, *bias.values(), out, lse),
        _core.scalars_of(t.q, 1, None, None, True, (-1, -1), 0, "zero", 0, False), "auto", "auto",
    )  # fmt: skip
    block = (framework if device == "cuda" else flashrel._frameworks.HOST).block(packed.device, packed.stream)
    attention, call = _abi.LIB.flashrel_attention, (packed.args, block.address, block.n_bytes, packed.stream)
    _abi.check(attention(*call))
    ways = {"C ABI": lambda: attention(*call), "ctypes": through(by_ctypes)}
    try:
        by_tvm_ffi = by_ctypes._replace(call=_adapter.by_tvm_ffi())
    except ImportError:
        by_tvm_ffi = None
    if by_tvm_ffi is not None:
        ways["tvm-ffi"] = through(by_tvm_ffi)
        ways["tvm-ffi, shared schedule"] = through(by_tvm_ffi, schedule=step)
        ways["tvm-ffi, a new lse"] = through(by_tvm_ffi, lse=None, return_lse=True)
    ways["torch operator"] = lambda: operator(*first, *scalars, None, *bias.values(), out=out, lse=lse)
    return ways


def call_cost(device: str, n_calls: int = 3000) -> dict[str, dict[str, float]]:
    """Host microseconds of one call, every way into the library.

    The ways take turns, IN_A_ROW calls each; on CUDA the device catches up in between, outside the measured time.
    """
    ways = ways_of_calling(device)
    samples: dict[str, list[int]] = {name: [] for name in ways}
    for i in range(n_calls // IN_A_ROW + 20):  # the first twenty rows warm up
        for name, function in ways.items():
            for _ in range(IN_A_ROW):
                start = time.perf_counter_ns()
                function()
                elapsed = time.perf_counter_ns() - start
                if i >= 20:
                    samples[name].append(elapsed)
            if device == "cuda":
                torch.cuda.synchronize()
    costs = {}
    for name, values in samples.items():
        low, median, high = statistics.quantiles(values, n=4)
        costs[name] = {"median_us": median / 1e3, "quartiles_us": [low / 1e3, high / 1e3], "best_us": min(values) / 1e3}
    return costs


def machine(device: str) -> dict[str, Any]:
    card = {"python": platform.python_version(), "torch": torch.__version__, "flashrel": flashrel.info()}
    if device == "cuda":
        card["gpu"] = torch.cuda.get_device_name()
    return card


def figure(report: dict[str, Any], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = report["cases"]
    plot, axes = pyplot.subplots(1, len(cases), figsize=(3.6 * len(cases), 3.4), constrained_layout=True)
    for axis, entry in zip([axes] if len(cases) == 1 else axes, cases):
        names = list(entry["results"])
        medians = [entry["results"][name]["median_us"] for name in names]
        colours = ["tab:blue" if n.startswith("flashrel") else "tab:gray" for n in names]
        axis.barh(names[::-1], medians[::-1], color=colours[::-1])
        for row, value in enumerate(medians[::-1]):
            axis.text(value, row, f" {value:,.0f}", va="center", fontsize=8)
        axis.set(title=entry["case"]["name"], xlabel="median, us", xlim=(0, 1.4 * max(medians)))
        axis.tick_params(axis="y", labelsize=8)
    plot.suptitle(report["title"], fontsize=9)
    plot.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashrel.bench", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds a case (15)")
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument("--json", default="flashrel-bench.json", help="where the report goes")
    parser.add_argument("--figure", help="also write this picture (needs matplotlib)")
    parser.add_argument("--fa4", help="folder of tools/fa4_peer.py: also time vLLM's Hopper operator")
    parser.add_argument("--call-cost", action="store_true", help="host time of one call instead of the cases")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"machine": machine(options.device)}
    report["title"] = f"{report['machine'].get('gpu', 'CPU')}, torch {torch.__version__}, bfloat16, head_dim {HEAD_DIM}"
    with torch.no_grad():
        if options.call_cost:
            report["call_cost_us"] = call_cost(options.device)
            for name, r in report["call_cost_us"].items():
                low, high = r["quartiles_us"]
                print(f"{name:24} {r['median_us']:8.1f} us   [{low:.1f} .. {high:.1f}], best {r['best_us']:.1f}")
        else:
            report["cases"] = []
            for case in CPU_CASES if options.device == "cpu" else CUDA_CASES:
                if options.cases not in case.name:
                    continue
                entry = run_case(case, options.device, torch.bfloat16, options.rounds, options.fa4)
                report["cases"].append(entry)
                for name, r in entry["results"].items():
                    low, high = r["quartiles_us"]
                    print(f"{case.name:24} {name:24} {r['median_us']:12,.1f} us   [{low:,.1f} .. {high:,.1f}]")
                for name, why in entry["left_out"].items():
                    print(f"{case.name:24} {name:24} left out: {why.splitlines()[0]}")
                sys.stdout.flush()
    with open(options.json, "w") as file:
        json.dump(report, file, indent=1)
    if options.figure and "cases" in report:
        figure(report, options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
