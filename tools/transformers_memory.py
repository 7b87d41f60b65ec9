#!/usr/bin/env python3
"""Peak memory and time of one forward pass of a small random Inkling model, by attention implementation and length.

    tools/transformers_memory.py [--lengths 4096,8192,16384,32768] [--json FILE]        a CUDA GPU, torch, transformers >= 5.17

Two layers, one global and one local, with the heads that one of eight GPUs has of the large model (8 query heads, 1 and 2 KV
heads, head_dim 128, extents 1024 and 512). Memory is what the pass adds to the model's own; logits of the last token only.
"""

import argparse
import json
import statistics
import sys

import torch
import transformers
from transformers.models.inkling.modeling_inkling import InklingForCausalLM

import flashrel.transformers


def make_model(attn_implementation):
    torch.manual_seed(0)
    config = transformers.InklingTextConfig(
        vocab_size=256, hidden_size=1024, num_hidden_layers=2, local_layer_ids=[0], mlp_layer_types=["dense", "dense"],
        num_attention_heads=8, num_key_value_heads=1, head_dim=128, swa_num_attention_heads=8, swa_num_key_value_heads=2,
        swa_head_dim=128, sliding_window_size=512, rel_extent=1024, d_rel=16, intermediate_size=1024, eos_token_id=None,
        bos_token_id=None, attn_implementation=attn_implementation,
    )  # fmt: skip
    return InklingForCausalLM(config).to("cuda", torch.bfloat16).eval()


def measure(model, length):
    """{peak_mib, ms, logits}, or {error} where the pass does not fit."""
    ids = torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(1)).cuda()
    times = []
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        for _ in range(3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
            begin.record()
            logits = model(ids, use_cache=False, logits_to_keep=1).logits
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    except torch.OutOfMemoryError as error:
        return {"error": str(error).split(". GPU")[0]}
    peak = torch.cuda.max_memory_allocated() - before
    return {"peak_mib": peak / 2**20, "ms": statistics.median(times), "logits": logits.flatten().float()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="4096,8192,16384,32768")
    parser.add_argument("--implementations", default="flashrel,sdpa,eager")
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    flashrel.transformers.register()
    names = options.implementations.split(",")
    models = {name: make_model(name) for name in names}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    rows, failed = [], False
    for length in map(int, options.lengths.split(",")):
        with torch.no_grad():
            results = {name: measure(model, length) for name, model in models.items()}
        expected = next((r["logits"] for name, r in results.items() if name != "flashrel" and "logits" in r), None)
        for name, r in results.items():
            logits = r.pop("logits", None)
            row = {"length": length, "implementation": name, **r}
            if logits is not None and expected is not None:
                row["difference"] = float((logits - expected).abs().max() / expected.abs().max())
                failed |= row["difference"] > 4e-2
            rows.append(row)
            print(", ".join(f"{key} {value:,.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
