#!/usr/bin/env python3
"""Times decode on a Hopper GPU, cold and in a CUDA graph, beside the machine's read bandwidth measured in the same run.

    tools/bench_decode.py --lib build/libflashrel.so                      # every row, and which goals it meets
    tools/bench_decode.py --lib build/libflashrel.so --peers cudnn,flash,flex --fa4 FOLDER
    tools/bench_decode.py --lib old=a.so --lib new=b.so --cases 32x8K --own

The schedule is made once and shared by all launches, as the layers of a model share it; --own also times calls that make
their own. K and V of every case come in as many copies as pass 300 MB, so that they come from DRAM; a graph holds launches of
all copies in turn, back to back, and the figure is the median replay divided by its launches; all contenders of a case replay
in turns, flex and fa4 after the others. Every result is checked against float64 on sampled rows first. read = K and V bytes over the bandwidth of a plain
load kernel. Mixed batches (chunks and decodes in one call) stand beside the sum of a call of the decodes and a call of the chunks.
Peers: cudnn, flash = SDPA, contiguous and without bias; flex = FlexAttention, contiguous, bias gathered from rel_logits;
--fa4 FOLDER, made by tools/fa4_peer.py: vLLM's operator on Hopper, bias from rel_logits, launched back to back without a graph.
Needs PyTorch and CuPy.
"""
import argparse
import ctypes as c
import json
import math
import sys
import time

import cupy
import torch
import torch.nn.functional as F
from bench_peers import D_REL, DEVICE, HEAD_DIM, Case, FlashRel, fa4_calls, median, worst_error
from torch.nn.attention import SDPBackend, sdpa_kernel

COLD_BYTES = 300e6


class ScheduleBuffer(c.Structure):
    _fields_ = [("data", c.c_void_p), ("bytes", c.c_size_t), ("key", c.c_uint64)]


class SharedCall(FlashRel):
    """A call whose schedule is made here, once."""

    def __init__(self, lib, backend, case, tensors):
        super().__init__(lib, backend, case, tensors)
        size = c.c_size_t()
        self.check(lib.flashrel_schedule_bytes(c.byref(self.args), c.byref(size)))
        self.schedule_memory = torch.empty(max(size.value, 1), dtype=torch.uint8, device=DEVICE)
        self.buffer = ScheduleBuffer(self.schedule_memory.data_ptr(), size.value, 0)
        self.schedule()
        self.args.schedule = c.addressof(self.buffer)

    def schedule(self):
        stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.lib.flashrel_schedule(c.byref(self.args), c.byref(self.buffer), stream))


SKEWED = [2048 * int(32 ** (i / 127)) for i in range(128)]
SPREAD = [8192 * int(8 ** (i / 126)) for i in range(127)]
G, L = dict(extent=1024), dict(extent=512, window=512)
CASES = [
    Case("1x64K 64/8", 1, 65536, 64, 8, **G),
    Case("1x64K 8/1", 1, 65536, 8, 1, **G),
    Case("1x64K 4/1", 1, 65536, 4, 1, **G),
    Case("1x8K 64/8", 1, 8192, 64, 8, **G),
    Case("1x1M 8/1", 1, 1 << 20, 8, 1, **G),
    Case("32x8K 64/8", [1] * 32, [8192] * 32, 64, 8, **G),
    Case("32x8K 64/8 page 64", [1] * 32, [8192] * 32, 64, 8, page=64, **G),
    Case("32x8K 64/8 page 16", [1] * 32, [8192] * 32, 64, 8, page=16, **G),
    Case("32x8K 64/8 q 2", [2] * 32, [8192] * 32, 64, 8, **G),
    Case("32x8K 64/8 q 4", [4] * 32, [8192] * 32, 64, 8, **G),
    Case("32x8K 64/8 q 8", [8] * 32, [8192] * 32, 64, 8, **G),
    Case("32x8K 64/8 q 9", [9] * 32, [8192] * 32, 64, 8, **G),
    Case("128 skewed 2K-64K 8/1", [1] * 128, SKEWED, 8, 1, **G),
    Case("128x local 64/16", [1] * 128, [8192] * 128, 64, 16, page=64, **L),
    Case("128x local 64/16 unaligned", [1] * 128, [8192 - 7 * i for i in range(128)], 64, 16, page=64, **L),
    Case("128x local 64/16 q 9", [9] * 128, [8192] * 128, 64, 16, page=64, **L),
    Case("512x300 8/1", [1] * 512, [300] * 512, 8, 1, page=64, **G),
    Case("mixed 127 + 2K of 32K 8/1", [1] * 127 + [2048], SPREAD + [32768], 8, 1, page=64, **G),
    Case("mixed 127 + 2K of 8K 64/8", [1] * 127 + [2048], SPREAD + [8192], 64, 8, page=64, **G),
    Case("mixed 32 + 512 64/16 local", [1] * 32 + [512], [8192] * 32 + [512], 64, 16, page=64, **L),
]  # fmt: skip

COMPILED_PEER_CASES = ("1x64K 64/8", "32x8K 64/8", "128x local 64/16")  # FlexAttention compiles for seconds a case

# What the rows are held against: name, left, right, largest left / right. A side is (case, call), "read" of the left's case
# or a time in us.
F1, N1 = "sm90 fused", "sm90 none"
GOALS = [
    ("1x64K 64/8 <= 66 us", ("1x64K 64/8", F1), 66.0, 1),
    ("1x64K 64/8 >= 90 % of read", ("1x64K 64/8", F1), "read", 1 / 0.90),
    ("1x64K 8/1 <= 13 us", ("1x64K 8/1", F1), 13.0, 1),
    ("1x64K 4/1 <= 13 us", ("1x64K 4/1", F1), 13.0, 1),
    ("1x1M 8/1 >= 95 %", ("1x1M 8/1", F1), "read", 1 / 0.95),
    ("32x8K 64/8 >= 95 %", ("32x8K 64/8", F1), "read", 1 / 0.95),
    ("32x8K 64/8 <= 1.02 x cuDNN without bias", ("32x8K 64/8", F1), ("32x8K 64/8", "cudnn"), 1.02),
    ("128 skewed >= 96 %", ("128 skewed 2K-64K 8/1", F1), "read", 1 / 0.96),
    ("128x local >= 90 %", ("128x local 64/16", F1), "read", 1 / 0.90),
    ("128x local unaligned >= 88 %", ("128x local 64/16 unaligned", F1), "read", 1 / 0.88),
    ("512x300 >= 78 %", ("512x300 8/1", F1), "read", 1 / 0.78),
    *((f"32x8K q {q} <= {x} x q 1", (f"32x8K 64/8 q {q}", F1), ("32x8K 64/8", F1), x) for q, x in ((2, 1.02), (4, 1.04), (8, 1.10), (9, 1.13))),
    ("local q 9 <= 1.35 x q 1", ("128x local 64/16 q 9", F1), ("128x local 64/16", F1), 1.35),
    ("page 16 <= 1.03 x page 128", ("32x8K 64/8 page 16", F1), ("32x8K 64/8", F1), 1.03),
    ("logits <= 1.05 x none, 32x8K", ("32x8K 64/8", "sm90 logits"), ("32x8K 64/8", N1), 1.05),
    ("logits <= 1.05 x none, 1x64K", ("1x64K 64/8", "sm90 logits"), ("1x64K 64/8", N1), 1.05),
    *((f"fused <= 1.02 x none, {case.name}", (case.name, F1), (case.name, N1), 1.02) for case in CASES if "mixed" not in case.name),
    *((f"{case.name} <= 1.05 x two calls", (case.name, F1), (case.name, F1 + " in two calls"), 1.05) for case in CASES if "mixed" in case.name),
]  # fmt: skip

READ = cupy.RawKernel(r'''
extern "C" __global__ void read_all(const uint4* data, unsigned long long n, unsigned* sink) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned sum = 0;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i + 7 * step < n; i += 8 * step) {
    uint4 x[8];
    #pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = __ldcs(&data[i + k * step]);
    #pragma unroll
    for (int k = 0; k < 8; ++k) sum += x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}''', "read_all")  # fmt: skip


class Contender:
    """`rounds` times the launches of all copies of a case in turn, captured once."""

    def __init__(self, calls, rounds):
        self.n, self.times = rounds * len(calls), []
        self.calls = calls  # with the memory that the graph uses
        for call in calls:
            call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        self.graph.replay()
        self.run = self.graph.replay

    def replay(self):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.run()
        end.record()
        torch.cuda.synchronize()
        self.times.append(begin.elapsed_time(end) * 1e3 / self.n)

    def us(self):
        return median(self.times)


class Ungraphed(Contender):
    """The same without a graph, for launches that cannot be captured and take longer than their launch."""

    def __init__(self, calls):
        self.n, self.times, self.calls = 8 * len(calls), [], calls
        self.run = lambda: [call() for _ in range(8) for call in calls]
        self.run()


def read_gb_per_s():
    data = torch.empty(1 << 31, dtype=torch.uint8, device=DEVICE).random_(0, 255)
    sink = torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def call(blocks):
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            READ((blocks,), (512,), (data.data_ptr(), data.numel() // 16, sink.data_ptr()))

    contenders = [Contender([lambda n=n: call(n)], 4) for n in (264, 528, 1056)]
    for _ in range(5):
        for contender in contenders:
            contender.replay()
    return max(data.numel() / contender.us() / 1e3 for contender in contenders)


POOL = {}


def cache(n_pages, case):
    """K and V of all copies: views of two pools that grow as cases need it."""
    n = n_pages * case.page * case.kv_heads * HEAD_DIM
    if POOL.get("n", 0) < n:
        POOL.clear()
        torch.cuda.empty_cache()
        POOL.update(n=n, **{x: torch.empty(n, device=DEVICE, dtype=torch.bfloat16) for x in "kv"})
        for x in (POOL["k"], POOL["v"]):
            for part in x.split(1 << 28):
                part.normal_()
    return [POOL[x][:n].view(n_pages, case.page, case.kv_heads, HEAD_DIM) for x in ("k", "v")]


def kv_bytes(case):
    seen = lambda q, kv: min(kv, case.window + q - 1) if case.window else kv
    return sum(seen(q, kv) for q, kv in zip(case.q, case.kv)) * case.kv_heads * HEAD_DIM * 4


def inputs(case):
    pages = [math.ceil(kv / case.page) for kv in case.kv]
    whole = sum(pages) * case.page * case.kv_heads * HEAD_DIM * 4
    n_copies = max(1, min(16, int(COLD_BYTES // kv_bytes(case)) + 1, int(40e9 // whole)))
    k, v = cache(sum(pages) * n_copies, case)
    order, n = torch.randperm(sum(pages) * n_copies, dtype=torch.int32), sum(case.q)
    prefix = torch.tensor([0] + case.q, dtype=torch.int32).cumsum(0).int().to(DEVICE)
    lens = torch.tensor(case.kv, dtype=torch.int32, device=DEVICE)
    normal = lambda *shape: torch.randn(*shape, device=DEVICE)
    shared = dict(
        q=normal(n, case.heads, HEAD_DIM).bfloat16(), k_cache=k, v_cache=v, cache_seqlens=lens, cu_seqlens_q=prefix,
        rel=normal(n, case.heads, D_REL).bfloat16(), rel_proj=(normal(D_REL, case.extent) * 0.4).bfloat16(),
        out=torch.empty(n, case.heads, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE),
    )  # fmt: skip
    shared["rel_logits"] = torch.einsum("thd,de->the", shared["rel"], shared["rel_proj"])
    copies, begin = [], 0
    for _ in range(n_copies):
        table = torch.full((len(pages), max(pages)), -1, dtype=torch.int32)
        for i, count in enumerate(pages):
            table[i, :count] = order[begin : begin + count]
            begin += count
        copies.append({**shared, "block_table": table.to(DEVICE)})
    return copies


def sdpa_calls(case, backend):
    n_copies = max(1, min(16, int(COLD_BYTES // kv_bytes(case)) + 1))
    q = torch.randn(len(case.q), case.heads, case.q[0], HEAD_DIM, device=DEVICE).bfloat16()
    shape = (len(case.q), case.kv_heads, case.kv[0], HEAD_DIM)
    kv = [[torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)] for _ in range(n_copies)]

    def call(k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, scale=case.scale, enable_gqa=True)

    return [lambda k=k, v=v: call(k, v) for k, v in kv]


def flex_calls(case):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, kv, extent, window = len(case.q), case.kv[0], case.extent, case.window or 1 << 30
    shape = (n, case.kv_heads, kv, HEAD_DIM)
    q = torch.randn(n, case.heads, 1, HEAD_DIM, device=DEVICE).bfloat16()
    logits = torch.randn(n, case.heads, extent, device=DEVICE).bfloat16()
    n_copies = max(1, min(16, int(COLD_BYTES // kv_bytes(case)) + 1, int(40e9 // (math.prod(shape) * 4))))
    copies = [[torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)] for _ in range(n_copies)]

    def add_bias(score, b, h, i, j):
        dist = kv - 1 - j
        return score + torch.where(dist < extent, logits[b, h, dist.clamp(0, extent - 1)], 0.0)

    mask = create_block_mask(lambda b, h, i, j: kv - 1 - j < window, None, None, 1, kv, device=DEVICE)
    compiled = torch.compile(flex_attention)
    return [
        lambda k=k, v=v: compiled(q, k, v, score_mod=add_bias, block_mask=mask, scale=case.scale, enable_gqa=True)
        for k, v in copies
    ]


def part_of(case, x, wanted):
    """The sequences whose q_len is wanted, as a batch of their own; they must stand side by side."""
    chosen = [i for i, q in enumerate(case.q) if wanted(q)]
    first, last = chosen[0], chosen[-1]
    rows = slice(sum(case.q[:first]), sum(case.q[: last + 1]))
    part = Case(case.name, case.q[first : last + 1], case.kv[first : last + 1], case.heads, case.kv_heads, case.extent, case.window, case.page)
    tensors = {k: t[rows] if k in ("q", "rel", "rel_logits", "out") else t for k, t in x.items()}
    tensors["block_table"] = x["block_table"][first : last + 1, : max(math.ceil(kv / case.page) for kv in part.kv)]
    tensors["cache_seqlens"] = x["cache_seqlens"][first : last + 1]
    tensors["cu_seqlens_q"] = (x["cu_seqlens_q"][first : last + 2] - rows.start).contiguous()
    return part, tensors


def launch_overhead(lib):
    """Of a call that has next to nothing to compute: host time of one call through ctypes, and its share of a graph's replay."""
    case = Case("tiny", [1], [64], 8, 1, extent=1024)
    x = inputs(case)[0]
    tensors = {k: t for k, t in x.items() if k != "rel_logits"}
    line = "launch overhead, 1 x 64 keys, fused:"
    for name, kind in (("shared schedule", SharedCall), ("own schedule", FlashRel)):
        call = kind(lib, "sm90", case, tensors)
        contender = Contender([call.launch], 200)
        for _ in range(5):
            contender.replay()
        host = []
        for _ in range(9):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(50):
                call.launch()
            host.append((time.perf_counter() - begin) * 1e6 / 50)
        line += f" {name}: {median(host):.1f} us of host time a call, {contender.us():.2f} us a launch in a graph;"
    print(line, flush=True)


def contenders_of(case, copies, libs, options, failures):
    """Contenders by name; results of all of FlashRel's and of FA4's are checked."""
    found = {}
    rounds = max(1, min(24 // len(copies), int(4e9 // (kv_bytes(case) * len(copies)))))
    modes = options.modes.split(",") + (["logits"] if case.name in options.logits_cases.split(",") else [])
    for lib_name, lib in libs.items():
        for backend in options.backends.split(","):
            for mode in dict.fromkeys(modes):
                names = dict(none=(), fused=("rel", "rel_proj"), logits=("rel_logits",))[mode]
                tensors = [{k: t for k, t in x.items() if not k.startswith("rel") or k in names} for x in copies]
                for kind in (SharedCall, FlashRel) if options.own else (SharedCall,):
                    name = f"{lib_name} {backend} {mode}".strip() + (" own" if kind is FlashRel else "")
                    try:
                        calls = [kind(lib, backend, case, x) for x in tensors]
                    except RuntimeError as error:
                        print(f"{case.name}: {name}: {error}")
                        continue
                    copies[0]["out"].fill_(math.nan)
                    calls[0].launch()
                    torch.cuda.synchronize()
                    error = worst_error(case, tensors[0])
                    if not error < 1e-2:
                        failures.append(f"{case.name}: {name}: row error {error:.1e}")
                    found[name] = Contender([call.launch for call in calls], rounds)
                    if options.own and kind is SharedCall:
                        found[name + " schedule alone"] = Contender([call.schedule for call in calls], rounds)
                    if case.name.startswith("mixed"):
                        parts = [[kind(lib, backend, *part_of(case, x, f)) for f in (lambda q: q < 10, lambda q: q >= 10)] for x in tensors]
                        for i, what in enumerate(("decodes", "chunks")):
                            found[f"{name} {what} alone"] = Contender([pair[i].launch for pair in parts], rounds)
                        found[name + " in two calls"] = Contender([call.launch for pair in parts for call in pair], rounds)
                        found[name + " in two calls"].n //= 2
    alike = set(case.q) == {1} and len(set(case.kv)) == 1 and "page" not in case.name
    peers = [p for p in options.peers.split(",") if p] if alike else []
    sdpa = dict(cudnn=SDPBackend.CUDNN_ATTENTION, flash=SDPBackend.FLASH_ATTENTION)
    for peer in peers:
        try:
            if peer == "flex":
                if case.name in COMPILED_PEER_CASES:
                    found[peer] = Contender(flex_calls(case), rounds)
            elif not case.window:
                found[peer] = Contender(sdpa_calls(case, sdpa[peer]), rounds)
        except RuntimeError as error:
            print(f"{case.name}: {peer}: {str(error).splitlines()[0]}")
    if options.fa4 and case.name in COMPILED_PEER_CASES:
        calls = [call for x in copies for name, call in fa4_calls(case, x, options.fa4).items()]
        if calls:
            copies[0]["out"].fill_(math.nan)
            calls[0]()
            error = worst_error(case, {k: t for k, t in copies[0].items() if k != "rel_logits"})
            if not error < 5e-2:  # its bias was rounded to bfloat16 on the way
                failures.append(f"{case.name}: fa4: row error {error:.1e}")
            found["fa4"] = Ungraphed(calls)
    return found


def judge_goals(rows):
    us = {(row["case"], row["call"]): row["us"] for row in rows}
    read = {row["case"]: row["read_us"] for row in rows}
    for name, left, right, limit in GOALS:
        if left not in us or isinstance(right, tuple) and right not in us:
            continue
        against = us[right] if isinstance(right, tuple) else read[left[0]] if right == "read" else right
        ratio = us[left] / against
        print(f"{'met' if ratio <= limit else 'MISSED':7s} {name:48s} {us[left]:8.2f} us / {against:8.2f} us = {ratio:.3f} (at most {limit:.3f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True, action="append", help="path of libflashrel.so, or NAME=PATH; repeatable")
    parser.add_argument("--backends", default="sm90")
    parser.add_argument("--peers", default="", help="cudnn, flash, flex")
    parser.add_argument("--fa4", help="folder of tools/fa4_peer.py")
    parser.add_argument("--modes", default="none,fused", help="none, fused, logits")
    parser.add_argument("--logits-cases", default="32x8K 64/8,1x64K 64/8", help="cases that are always timed in mode logits too")
    parser.add_argument("--cases", default="", help="only cases whose name contains one of these, comma-separated")
    parser.add_argument("--own", action="store_true", help="also calls that make their own schedule")
    parser.add_argument("--replays", type=int, default=5)
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    libs = {}
    for text in options.lib:
        name, _, path = text.rpartition("=")
        libs[name] = c.CDLL(path)
        libs[name].flashrel_last_error.restype = c.c_char_p
    words = [w for w in options.cases.split(",") if w]
    bandwidth = read_gb_per_s()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; "
          f"plain load kernel {bandwidth:.0f} GB/s", flush=True)  # fmt: skip
    for lib in libs.values():
        launch_overhead(lib)
    rows, failures = [], []
    for case in CASES:
        if words and not any(w in case.name for w in words):
            continue
        copies, read = inputs(case), kv_bytes(case) / bandwidth / 1e3
        found = contenders_of(case, copies, libs, options, failures)
        # A peer that computes for milliseconds lowers the card's clock for those that follow, so those take their turns last.
        slow = [name for name in found if name in ("flex", "fa4")]
        for names in ([name for name in found if name not in slow], slow):
            for _ in range(options.replays):
                for name in names:
                    found[name].replay()
        print(f"{case.name:28s} {kv_bytes(case) / 1e6:7.1f} MB  read {read:7.2f} us")
        for name, contender in found.items():
            print(f"    {name:36s} {contender.us():8.2f} us {100 * read / contender.us():5.1f} %", flush=True)
            rows.append(dict(case=case.name, call=name, us=contender.us(), read_us=read))
        del found
    judge_goals(rows)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(dict(read_gb_per_s=bandwidth, rows=rows), file, indent=1)
    for failure in failures:
        print("WRONG", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
