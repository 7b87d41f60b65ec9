#!/usr/bin/env python3
"""Times decode on a Hopper GPU, cold and in a CUDA graph, beside the machine's read bandwidth measured in the same run.

    tools/bench_decode.py --lib build/libflashrel.so [--backends sm90,mma] [--peers cudnn,flash] [--cases 32x8K] [--json F]

The schedule is made once and shared by all launches, as the layers of a model share it; --own also times calls that make
their own. K and V of every case come in as many copies as pass 300 MB, so that they come from DRAM; a graph holds launches of
all copies in turn, back to back, and the figure is the median replay divided by its launches. Every result is checked against
float64 on sampled rows first. read = K and V bytes over the bandwidth of a plain load kernel. Peers are contiguous and
without bias.
Needs PyTorch and CuPy.
"""
import argparse
import ctypes as c
import json
import math
import sys

import cupy
import torch
import torch.nn.functional as F
from bench_peers import D_REL, DEVICE, HEAD_DIM, Case, FlashRel, median, worst_error
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
        stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(lib.flashrel_schedule(c.byref(self.args), c.byref(self.buffer), stream))
        self.args.schedule = c.addressof(self.buffer)


SKEWED = [2048 * int(32 ** (i / 127)) for i in range(128)]
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


def graph_us(calls, replays, rounds=0):
    """Median time of one call in a graph of `rounds` times all of them."""
    rounds = rounds or max(1, 24 // len(calls))
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    times = []
    for i in range(replays + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / (rounds * len(calls)))
    return median(times[1:])


def read_gb_per_s():
    data = torch.empty(1 << 31, dtype=torch.uint8, device=DEVICE).random_(0, 255)
    sink = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    best = 0
    for blocks in (264, 528, 1056):

        def call():
            with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                READ((blocks,), (512,), (data.data_ptr(), data.numel() // 16, sink.data_ptr()))

        best = max(best, data.numel() / graph_us([call], 5, 4) / 1e3)
    return best


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


def peer_us(case, backend, replays):
    n_copies = max(1, min(16, int(COLD_BYTES // kv_bytes(case)) + 1))
    q = torch.randn(len(case.q), case.heads, case.q[0], HEAD_DIM, device=DEVICE).bfloat16()
    shape = (len(case.q), case.kv_heads, case.kv[0], HEAD_DIM)
    kv = [[torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)] for _ in range(n_copies)]

    def call(k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, scale=case.scale, enable_gqa=True)

    return graph_us([lambda k=k, v=v: call(k, v) for k, v in kv], replays)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True, help="path of libflashrel.so")
    parser.add_argument("--backends", default="sm90")
    parser.add_argument("--peers", default="", help="cudnn, flash")
    parser.add_argument("--modes", default="none,fused", help="none, fused, logits")
    parser.add_argument("--cases", default="", help="only cases whose name contains one of these, comma-separated")
    parser.add_argument("--own", action="store_true", help="also calls that make their own schedule")
    parser.add_argument("--replays", type=int, default=7)
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    lib = c.CDLL(options.lib)
    lib.flashrel_last_error.restype = c.c_char_p
    words = [w for w in options.cases.split(",") if w]
    bandwidth = read_gb_per_s()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; plain load kernel {bandwidth:.0f} GB/s", flush=True)
    rows, wrong = [], 0
    for case in CASES:
        if words and not any(w in case.name for w in words):
            continue
        copies, read = inputs(case), kv_bytes(case) / bandwidth / 1e3
        line = f"{case.name:28s} {kv_bytes(case) / 1e6:7.1f} MB  read {read:7.2f} us |"
        for backend in options.backends.split(","):
            for mode in options.modes.split(","):
                names = dict(none=(), fused=("rel", "rel_proj"), logits=("rel_logits",))[mode]
                keep = lambda x: {k: t for k, t in x.items() if not k.startswith("rel") or k in names}
                for kind in (SharedCall, FlashRel) if options.own else (SharedCall,):
                    name = f"{backend} {mode}" + (" own" if kind is FlashRel else "")
                    try:
                        calls = [kind(lib, backend, case, keep(x)) for x in copies]
                    except RuntimeError as error:
                        line += f" {name}: {error}"
                        continue
                    copies[0]["out"].fill_(math.nan)
                    calls[0].launch()
                    torch.cuda.synchronize()
                    error = worst_error(case, keep(copies[0]))
                    us = graph_us([call.launch for call in calls], options.replays)
                    line += f" {name} {us:7.2f} us {100 * read / us:5.1f} %" + ("" if error < 1e-2 else f" WRONG {error:.1e}")
                    wrong += not error < 1e-2
                    rows.append(dict(case=case.name, call=name, us=us, read_us=read, row_error=error))
        for peer in [p for p in options.peers.split(",") if p]:
            if len(set(case.kv)) == 1 and not case.window:
                backends = dict(cudnn=SDPBackend.CUDNN_ATTENTION, flash=SDPBackend.FLASH_ATTENTION)
                us = peer_us(case, backends[peer], options.replays)
                line += f" {peer} {us:7.2f} us"
                rows.append(dict(case=case.name, call=peer, us=us, read_us=read))
        print(line, flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(dict(read_gb_per_s=bandwidth, rows=rows), file, indent=1)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
