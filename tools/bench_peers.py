#!/usr/bin/env python3
"""Times FlashRel's CUDA backends beside PyTorch's attention in one run, and checks every timed result against float64.

    tools/bench_peers.py --lib build/libflashrel.so --backends sm90 --fa4 FOLDER     # every case and aim of sm90 prefill, a minute
    tools/bench_peers.py --lib build/libflashrel.so --cases local --peers cudnn

Peers: cudnn, flash = SDPA by cuDNN and by FLASH_ATTENTION without bias (contenders only where causal attention is square
and unwindowed), flex = FlexAttention with the bias gathered by its score_mod from rel_logits, in the cases that name it (it
is compiled for each). --fa4 FOLDER, made by tools/fa4_peer.py: vLLM's operator on Hopper, FlashAttention-4 with its score_mod,
from rel_logits as well. The production of rel_logits is timed as a line of its own.
burst = one launch after 25 ms of idle; sustained = back to back, second half counted. Runs are interleaved in random order;
medians, useful FLOP only. Cycles are those of an SM's clock over a call, two empty launches included. Several builds can be
compared: --lib old=a/libflashrel.so --lib new=b/libflashrel.so. Needs a CUDA GPU and PyTorch.
"""
import argparse
import ctypes as c
import importlib.util
import itertools
import json
import math
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"
HEAD_DIM, D_REL = 128, 16


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("rank", c.c_int32), ("shape", c.c_int64 * 4), ("stride", c.c_int64 * 4)]


TENSORS = "q k_cache v_cache block_table cache_seqlens cu_seqlens_q rel_logits rel rel_proj rel_scale out lse".split()


class Args(c.Structure):
    _fields_ = (
        [("struct_size", c.c_size_t), ("memory", c.c_int32), ("device", c.c_int32)]
        + [(name, Tensor) for name in TENSORS]
        + [("max_seqlen_q", c.c_int64), ("max_seqlen_k", c.c_int64), ("softmax_scale", c.c_double), ("causal", c.c_int32)]
        + [("rel_edge", c.c_int32), ("window_left", c.c_int64), ("window_right", c.c_int64), ("rel_zero", c.c_int64)]
        + [("num_splits", c.c_int32), ("deterministic", c.c_int32), ("validate", c.c_int32)]
        + [("backend", c.c_char_p), ("route", c.c_char_p), ("schedule", c.c_void_p)]
    )


class FlashRel:
    """One planned call: launch() enqueues it on the current stream."""

    def __init__(self, lib, backend, case, tensors):
        self.lib, self.keep = lib, tensors
        self.args = Args()
        lib.flashrel_attention_args_init(c.byref(self.args), c.c_size_t(c.sizeof(Args)))
        self.args.memory = 1
        self.args.softmax_scale = case.scale
        self.args.window_left = case.window - 1 if case.window else -1
        self.args.max_seqlen_q, self.args.max_seqlen_k = max(case.q), max(case.kv)
        self.args.backend = backend.encode()
        dtypes = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int32: 3}
        for name, t in tensors.items():
            pad = [0] * (4 - t.dim())
            shape, stride = (c.c_int64 * 4)(*t.shape, *pad), (c.c_int64 * 4)(*t.stride(), *pad)
            setattr(self.args, name, Tensor(t.data_ptr(), dtypes[t.dtype], t.dim(), shape, stride))
        size = c.c_size_t()
        self.check(lib.flashrel_attention_workspace(c.byref(self.args), c.byref(size)))
        self.workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device=DEVICE)

    def check(self, code):
        if code:
            raise RuntimeError(self.lib.flashrel_last_error().decode())

    def launch(self):
        stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
        space = c.c_void_p(self.workspace.data_ptr())
        self.check(self.lib.flashrel_attention(c.byref(self.args), space, c.c_size_t(self.workspace.numel()), stream))


class Case:
    """`other_pages`: sizes that are timed beside `page`. `flex`: FlexAttention is a peer."""

    def __init__(self, name, q, kv, heads, kv_heads, extent, window=0, page=128, other_pages=(), dim=HEAD_DIM, d_rel=D_REL,
                 scale=None, flex=False):  # fmt: skip
        as_list = lambda x: x if isinstance(x, list) else [x]
        self.name, self.q, self.kv, self.heads, self.kv_heads = name, as_list(q), as_list(kv), heads, kv_heads
        self.extent, self.window, self.page, self.other_pages = extent, window, page, other_pages
        self.dim, self.d_rel, self.scale, self.flex = dim, d_rel, scale or 1 / dim, flex

    def square(self):
        return self.q == self.kv and len(self.q) == 1 and not self.window

    def flop(self):
        pairs = 0
        for q, kv in zip(self.q, self.kv):
            seen = torch.arange(q, dtype=torch.float64) + kv - q + 1
            pairs += float(seen.clamp(max=self.window or 1e18).sum())
        return 4 * self.dim * pairs * self.heads


SKEWED = [17 + int(4079 * (i / 63) ** 3) for i in range(64)]
CASES = [
    Case("global 8K 64/8", 8192, 8192, 64, 8, 1024, other_pages=(64, 16), flex=True),
    Case("local 8K 64/16", 8192, 8192, 64, 16, 512, 512, other_pages=(64, 16), flex=True),
    Case("global 32K 8/1", 32768, 32768, 8, 1, 1024),
    Case("chunk 2K of 32K 8/1", 2048, 32768, 8, 1, 1024),
    Case("skewed 64 x 17..4096 64/8", SKEWED, SKEWED, 64, 8, 1024),
    Case("even 64 x same tokens 64/8", [sum(SKEWED) // 64] * 64, [sum(SKEWED) // 64] * 64, 64, 8, 1024),
    Case("chunks 16 x 512 on 0..30K 8/1", [512] * 16, [512 + 2048 * i for i in range(16)], 8, 1, 1024),
    Case("single 512 8/1", 512, 512, 8, 1, 1024),
    Case("scale 1/sqrt(d) 8K 64/8", 8192, 8192, 64, 8, 1024, scale=128**-0.5),
    Case("d_rel 32 8K 64/8", 8192, 8192, 64, 8, 1024, d_rel=32),
    Case("d_rel 32 8K 64/16 window 512", 8192, 8192, 64, 16, 512, 512, d_rel=32),
    Case("head_dim 64 8K 64/8", 8192, 8192, 64, 8, 1024, dim=64),
    Case("head_dim 64 8K 64/16 window 512", 8192, 8192, 64, 16, 512, 512, dim=64),
]

# Aims of sm90 prefill: case, call, what its time is divided by (calls of the case, added up; another case's call; or
# milliseconds), the largest quotient.
PRODUCER = "  rel_logits by einsum"
AIMS = [
    ("global 8K 64/8", "none", ["cudnn without bias"], 0.89),
    ("global 8K 64/8", "fused", ["cudnn without bias"], 0.91),
    ("global 8K 64/8", "fused", ["flex with bias", PRODUCER], 1 / 8.5),
    ("global 8K 64/8", "fused", ["fa4 with bias", PRODUCER], 1 / 2.8),
    ("global 8K 64/8", "logits", ["cudnn without bias"], 1.15),
    ("local 8K 64/16", "fused", 0.280, 1.0),
    ("local 8K 64/16", "fused", ["fa4 with bias", PRODUCER], 1 / 3.5),
    ("global 32K 8/1", "fused", ["cudnn without bias"], 0.88),
    ("chunk 2K of 32K 8/1", "fused", 0.380, 1.0),
    *((case, f"{mode} page {page}", [mode], 1.03) for case in ("global 8K 64/8", "local 8K 64/16") for page in (64, 16)
      for mode in ("none", "fused", "logits")),
    ("single 512 8/1", "none", ["cudnn without bias"], 1.1),
    ("single 512 8/1", "fused", ["cudnn without bias"], 1.1),
]  # fmt: skip


def make_inputs(case):
    n, page, dim = sum(case.q), case.page, case.dim
    pages = [math.ceil(kv / page) for kv in case.kv]
    normal = lambda *shape: torch.randn(*shape, device=DEVICE)
    unit = lambda x: F.normalize(x, dim=-1) * (dim**0.5 if case.scale < 0.05 else dim**0.25)
    order = torch.randperm(sum(pages), device=DEVICE, dtype=torch.int32)
    table = torch.full((len(pages), max(pages)), -1, dtype=torch.int32, device=DEVICE)
    begin = 0
    for i, count in enumerate(pages):
        table[i, :count] = order[begin : begin + count]
        begin += count
    cache = lambda f: f(normal(sum(pages), page, case.kv_heads, dim)).bfloat16()
    prefix = torch.tensor([0] + case.q, dtype=torch.int32).cumsum(0).int()
    return dict(
        q=unit(normal(n, case.heads, dim)).bfloat16(), k_cache=cache(unit), v_cache=cache(lambda x: x), block_table=table,
        cache_seqlens=torch.tensor(case.kv, dtype=torch.int32, device=DEVICE), cu_seqlens_q=prefix.to(DEVICE),
        rel=normal(n, case.heads, case.d_rel).bfloat16(), rel_proj=(normal(case.d_rel, case.extent) * 0.4).bfloat16(),
        out=torch.empty(n, case.heads, dim, dtype=torch.bfloat16, device=DEVICE),
    )  # fmt: skip


def with_pages(x, page):
    """The same keys in smaller pages, which lie in random order."""
    n_pages, old = x["k_cache"].shape[:2]
    parts = old // page
    order = torch.randperm(n_pages * parts, device=DEVICE)
    place = torch.argsort(order).int()
    caches = {name: x[name].unflatten(1, (parts, page)).flatten(0, 1)[order] for name in ("k_cache", "v_cache")}
    table = (x["block_table"][:, :, None].clamp(0) * parts + torch.arange(parts, device=DEVICE)).flatten(1)
    return x | caches | dict(block_table=place[table.long()])


def produce_logits(x):
    return torch.einsum("thd,de->the", x["rel"], x["rel_proj"])


def with_mode(x, mode):
    """The tensors of a call in a bias mode: none, fused, logits or logits32 (rel_logits in float32)."""
    tensors = {name: t for name, t in x.items() if mode == "fused" or not name.startswith("rel")}
    if mode.startswith("logits"):
        logits = produce_logits(x)
        tensors["rel_logits"] = logits.float() if mode == "logits32" else logits
    return tensors


def sequence(case, x, i):
    """K and V of sequence i as (kv_len, n_kv_heads, head_dim)."""
    pages = x["block_table"][i, : math.ceil(case.kv[i] / x["k_cache"].shape[1])].long()
    return [x[name][pages].flatten(0, 1)[: case.kv[i]] for name in ("k_cache", "v_cache")]


def worst_error(case, x):
    """Largest relative error of a row, over sampled rows of three sequences."""
    worst, group = 0.0, case.heads // case.kv_heads
    for i in sorted({0, len(case.q) // 2, len(case.q) - 1}):
        k, v = (t.double() for t in sequence(case, x, i))
        q_len, kv_len, begin = case.q[i], case.kv[i], sum(case.q[:i])
        rows = torch.unique(torch.cat([torch.randint(0, q_len, (24,)), torch.tensor([0, q_len - 1])])).to(DEVICE)
        dist = (rows + kv_len - q_len)[:, None] - torch.arange(kv_len, device=DEVICE)
        hidden = (dist < 0) | (dist >= (case.window or 1 << 40))
        for h in range(0, case.heads, max(1, case.heads // 8)):
            s = x["q"][begin + rows, h].double() @ k[:, h // group].T * case.scale
            if "rel_logits" in x or "rel" in x:
                if "rel" in x:
                    logits = x["rel"][begin + rows, h].double() @ x["rel_proj"].double()
                else:
                    logits = x["rel_logits"][begin + rows, h].double()
                s += torch.where((dist >= 0) & (dist < case.extent), logits.gather(1, dist.clamp(0, case.extent - 1)), 0.0)
            truth = s.masked_fill(hidden, -math.inf).softmax(-1) @ v[:, h // group]
            error = (x["out"][begin + rows, h].double() - truth).norm(dim=1) / truth.norm(dim=1)
            worst = max(worst, float(error.nan_to_num(math.inf).max()))
    return worst


def flex_calls(case, x):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    k, v = sequence(case, x, 0)
    q, kv, extent = case.q[0], case.kv[0], case.extent
    offset, window = kv - q, case.window or 1 << 30
    logits = produce_logits(x)
    view = lambda t: t.transpose(0, 1)[None].contiguous()
    qs, ks, vs = view(x["q"]), view(k), view(v)

    def visible(b, h, i, j):
        return (i + offset >= j) & (i + offset - j < window)

    def add_bias(score, b, h, i, j):
        dist = i + offset - j
        return score + torch.where((dist >= 0) & (dist < extent), logits[i, h, dist.clamp(0, extent - 1)], 0.0)

    mask = create_block_mask(visible, None, None, q, kv, device=DEVICE)
    compiled = torch.compile(flex_attention)
    return {"flex with bias": lambda: compiled(qs, ks, vs, score_mod=add_bias, block_mask=mask, scale=case.scale, enable_gqa=True)}


def fa4_calls(case, x, folder):
    spec = importlib.util.spec_from_file_location("fa4_peer", f"{folder}/fa4_peer.py")
    fa4_peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fa4_peer)
    try:
        run = fa4_peer.load(folder, case.heads, case.kv_heads, case.extent, case.window, case.page, max(case.q))
    except LookupError as error:
        print(f"{case.name}: {error}")
        return {}
    logits = produce_logits(x)
    tensors = [x[name] for name in ("q", "k_cache", "v_cache", "block_table", "cache_seqlens", "cu_seqlens_q")]
    return {"fa4 with bias": lambda: run(*tensors, logits, x["out"], case.scale)}


def flashrel_calls(case, x, libs, options, failures):
    calls = {}
    for page in (case.page, *case.other_pages):
        paged = x if page == case.page else with_pages(x, page)
        for mode, backend in itertools.product(options.modes.split(","), options.backends.split(",")):
            if page != case.page and backend == "mma":
                continue
            tensors = with_mode(paged, mode)
            for lib_name, lib in libs.items():
                name = f"{lib_name} {backend} {mode}".strip() + (f" page {page}" if page != case.page else "")
                try:
                    call = FlashRel(lib, backend, case, tensors)
                except RuntimeError as error:
                    print(f"{case.name}: {name}: {error}")
                    continue
                calls[name] = call.launch
                check_call(case, name, call.launch, tensors, 1e-2, failures)
    return calls


def check_call(case, name, call, tensors, bound, failures):
    tensors["out"].fill_(math.nan)
    call()
    error = worst_error(case, tensors)
    print(f"{case.name}: {name}: worst row error {error:.1e}", flush=True)
    if not error < bound:
        failures.append(f"{case.name}: {name}: {error:.1e}")


def calls_of(case, x, libs, options, failures):
    peers = options.peers.split(",")
    calls = flashrel_calls(case, x, libs, options, failures)
    if case.square():
        view = lambda t: t.transpose(0, 1)[None].contiguous()
        qs, (ks, vs) = view(x["q"]), (view(t) for t in sequence(case, x, 0))

        def sdpa(backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(qs, ks, vs, is_causal=True, scale=case.scale, enable_gqa=True)

        if "cudnn" in peers:
            calls["cudnn without bias"] = lambda: sdpa(SDPBackend.CUDNN_ATTENTION)
        if "flash" in peers:
            calls["flash without bias"] = lambda: sdpa(SDPBackend.FLASH_ATTENTION)
    if "flex" in peers and case.flex:
        calls.update(flex_calls(case, x))
    if options.fa4 and case.dim == HEAD_DIM:
        for name, call in fa4_calls(case, x, options.fa4).items():
            check_call(case, name, call, x, 5e-2, failures)  # its bias was rounded to bfloat16 on the way
            calls[name] = call
    if any("with bias" in name for name in calls):
        calls[PRODUCER] = lambda: produce_logits(x)
    return calls


def event():
    return torch.cuda.Event(enable_timing=True)


READ_CLOCK = """
extern "C" __global__ void read_clock(long long* clocks) {
  unsigned sm;
  asm("mov.u32 %0, %smid;" : "=r"(sm));
  clocks[sm] = clock64();
}
"""


class Stopwatch:
    """Milliseconds of a call, and the cycles that the SMs' clocks counted meanwhile (the median of the SMs)."""

    def __init__(self):
        self.n_sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.kernel = torch.cuda._compile_kernel(READ_CLOCK, "read_clock")
        self.clocks = torch.zeros(2, self.n_sms, dtype=torch.int64, device=DEVICE)

    def read_clocks(self, i):
        self.kernel(grid=(self.n_sms, 1, 1), block=(32, 1, 1), args=(self.clocks[i],))

    def time(self, call):
        torch.cuda._sleep(2000000)  # hides the launch latency
        begin, end = event(), event()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def cycles(self, call):
        torch.cuda._sleep(2000000)
        self.read_clocks(0)
        call()
        self.read_clocks(1)
        torch.cuda.synchronize()
        return float((self.clocks[1] - self.clocks[0]).double().median())


def time_calls(calls, n_burst, sustained_ms):
    watch = Stopwatch()
    burst, cycles, sustained = ({n: [] for n in calls} for _ in range(3))
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(n_burst):
        for name in random.sample(list(calls), len(calls)):
            torch.cuda.synchronize()
            time.sleep(0.025)
            burst[name].append(watch.time(calls[name]))
            cycles[name].append(watch.cycles(calls[name]))
    for name in random.sample(list(calls), len(calls)) if sustained_ms else []:
        n = max(10, min(int(sustained_ms / median(burst[name])), 2000))
        marks = [event() for _ in range(n + 1)]
        torch.cuda._sleep(1000000)
        marks[0].record()
        for i in range(n):
            calls[name]()
            marks[i + 1].record()
        torch.cuda.synchronize()
        sustained[name] = [marks[i].elapsed_time(marks[i + 1]) for i in range(n // 2, n)]
    return burst, cycles, sustained


def median(values):
    return sorted(values)[len(values) // 2] if values else math.nan


def print_rows(rows):
    print(f"\n{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print(f"{'case':32s} {'call':24s} {'burst ms':>9s} {'(min - max)':>17s} {'TFLOP/s':>8s} {'kcycles':>8s} {'sustained':>9s}")
    for r in rows:
        spread = f"({r['burst_min']:.3f} - {r['burst_max']:.3f})"
        print(f"{r['case']:32s} {r['call']:24s} {r['burst_ms']:9.4f} {spread:>17s} {r['tflops']:8.1f} {r['cycles'] / 1e3:8.0f} {r['sustained_ms']:9.4f}")


def print_aims(rows, prefix):
    """`prefix`: what the names of sm90's calls begin with."""
    found = {(r["case"], r["call"].removeprefix(prefix)): r for r in rows}
    print(f"\n{'aims of ' + prefix + 'prefill':52s} {'aim':>6s} {'burst':>7s} {'cycles':>7s} {'sustained':>9s}")

    def line(text, aim, quotients):
        burst, cycles, sustained = (f"{x:.3f}" if x == x else "" for x in quotients)
        print(f"{text:52s} {aim:6.3f} {burst:>7s} {cycles:>7s} {sustained:>9s}  {'' if quotients[0] <= aim else 'missed'}".rstrip())

    fields = ("burst_ms", "cycles", "sustained_ms")
    for case, call, by, aim in AIMS:
        row = found.get((case, call))
        if row is None or isinstance(by, list) and not all((case, name) in found for name in by):
            continue
        if isinstance(by, list):
            below = [sum(found[case, name][field] for name in by) for field in fields]
            line(f"{case}: {call} / ({' + '.join(name.strip() for name in by)})"[:52], aim, [row[f] / b for f, b in zip(fields, below)])
        else:
            line(f"{case}: {call} / {by} ms", aim, [row["burst_ms"] / by, math.nan, row["sustained_ms"] / by])
    # A rate: the longer of two times for as much work may be 1 / 0.88 of the other.
    skewed, even = (next((r for (name, call), r in found.items() if name.startswith(word) and call == "fused"), None) for word in ("skewed", "even"))
    if skewed and even:
        work = even["flop"] / skewed["flop"]
        line("skewed: fused, time per FLOP / even", 1 / 0.88, [skewed[f] / even[f] * work for f in fields])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True, action="append", help="path of libflashrel.so, or NAME=PATH; repeatable")
    parser.add_argument("--modes", default="none,fused,logits", help="none, fused, logits, logits32")
    parser.add_argument("--backends", default="sm90,mma")
    parser.add_argument("--peers", default="cudnn,flash,flex")
    parser.add_argument("--fa4", help="folder of tools/fa4_peer.py")
    parser.add_argument("--cases", default="", help="only cases whose name contains one of these, comma-separated")
    parser.add_argument("--bursts", type=int, default=9)
    parser.add_argument("--sustained-ms", type=float, default=300, help="0 = bursts only")
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    libs = {}
    for text in options.lib:
        name, _, path = text.rpartition("=")
        libs[name] = c.CDLL(path)
        libs[name].flashrel_last_error.restype = c.c_char_p
    words = [w for w in options.cases.split(",") if w]
    failures, rows = [], []
    for case in CASES:
        if words and not any(w in case.name for w in words):
            continue
        x = make_inputs(case)
        calls = calls_of(case, x, libs, options, failures)
        burst, cycles, sustained = time_calls(calls, options.bursts, options.sustained_ms)
        for name in calls:
            low, mid, high, steady = min(burst[name]), median(burst[name]), max(burst[name]), median(sustained[name])
            rows.append(dict(case=case.name, call=name, burst_ms=mid, burst_min=low, burst_max=high, sustained_ms=steady,
                             cycles=median(cycles[name]), flop=case.flop(), tflops=case.flop() / mid / 1e9))  # fmt: skip
    print_rows(rows)
    for name in libs:
        print_aims(rows, f"{name} sm90 ".lstrip())
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    for failure in failures:
        print("WRONG", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
