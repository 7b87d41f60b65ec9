"""python -m flashrel.bench: FlashRel beside the peers that this machine has, interleaved, checked in the same run.

Peers: torch SDPA with a dense bias (CPU and CUDA), FlexAttention with a gather of the bias, vLLM's Hopper operator (FA4 with a
score_mod; --fa4 names a folder made by tools/fa4_peer.py). Bounds without any bias: cuDNN SDPA, and vLLM's Triton attention
(of the vLLM installed, or of the unpacked wheel that --vllm names). Every result is compared with a float32 computation of
sampled rows. Writes JSON with the machine, versions, medians and quartiles; with --figure also a picture (matplotlib).
`--call-cost` measures host time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import flashrel

from ._bench_cases import CPU_CASES, CUDA_CASES, HEAD_DIM, PAGE, Case, Tensors
from ._bench_peers import fa4_peers, flashrel_peers, flex_peers, sdpa_peers, triton_peers

IN_A_ROW = 16  # calls of one way, then of the next
TOLERANCE = 5e-2  # relative_error of bfloat16; what materialises rel_logits in it is several times less exact than fused


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


def relative_error(got: torch.Tensor, right: torch.Tensor) -> float:
    """The largest of the rows' errors, each in units of its row's largest element: averages over many keys are small."""
    return float(((got - right).abs().amax((1, 2)) / right.abs().amax((1, 2))).max())


def run_case(
    case: Case, device: str, dtype: torch.dtype, rounds: int, fa4: str | None = None, vllm: str | None = None
) -> dict[str, Any]:  # fmt: skip
    tensors, timer = Tensors(case, device, dtype), Timer(device)
    rows = tensors.sampled_rows()
    expected = {with_bias: tensors.expected(rows, with_bias) for with_bias in (True, False)}
    peers, errors, left_out = {}, {}, {}
    makers = {"flashrel": flashrel_peers, "SDPA": sdpa_peers, "FlexAttention": flex_peers}
    makers["FA4"] = functools.partial(fa4_peers, folder=fa4)
    makers["vLLM Triton"] = functools.partial(triton_peers, folder=vllm)
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
            if "rel_logits" not in name:
                got = torch.stack([out[b * case.q_len + i] for b, i in rows]).float()
                errors[name] = relative_error(got, expected["no bias" not in name])
                assert errors[name] < TOLERANCE, f"{case.name}: {name} is wrong"
            peers[name] = function
    samples: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, function in peers.items():
            samples[name].append(timer(function))
    results = {}
    for name, values in samples.items():
        low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        results[name] = {"median_us": median * 1e6, "quartiles_us": [low * 1e6, high * 1e6], "relative_error": errors.get(name)}
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
    parser.add_argument("--vllm", help="folder of an unpacked vLLM wheel: also time its Triton attention")
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
                entry = run_case(case, options.device, torch.bfloat16, options.rounds, options.fa4, options.vllm)
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
