#!/usr/bin/env python3
"""Train inkling-nano with transformers' own Inkling classes and write it under the checkpoint's own tensor names.

    ./prepare_text.py out && ./train.py out/train.txt out/heldout.txt --out out --minutes 8

Needs: transformers 5.17 or later (models/inkling), torch 2.11 or later, safetensors; one GPU (a CPU runs it, slowly).
Writes OUT/model.safetensors (bfloat16), OUT/config.json and OUT/train.json (arguments, machine, loss curve). The files
are written again at every --save-minutes, so a run that is cut short leaves its latest weights.

The classes are transformers', three inner functions are replaced during training for speed and then put back; before
the first step both versions must give the same loss:
  * the relative bias stays (batch, head, query, distance) and is sheared into place by one strided copy, not a gather;
  * attention is F.scaled_dot_product_attention, local layers in blocks of one window, so that they see 2 windows only;
  * the short convolution is four shifted products.
"""

import argparse
import contextlib
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import InklingConfig, InklingForCausalLM, InklingTextConfig
from transformers.models.inkling import modeling_inkling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

CONTEXT = 2048  # training length: twice the global extent, four local windows
MASKED = -30000.0  # bias of an invisible key: finite, since a whole tile of -inf is a NaN in some kernels


def nano_config() -> InklingTextConfig:
    """7.8 M parameters, one byte a token; 5 local layers and, last, the global one."""
    return InklingTextConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        layer_types=["hybrid_sliding"] * 5 + ["hybrid"],
        mlp_layer_types=["dense"] * 6,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=128,
        swa_num_attention_heads=8,
        swa_num_key_value_heads=2,
        swa_head_dim=128,
        sliding_window_size=512,
        rel_extent=1024,
        d_rel=16,
        conv_kernel_size=4,
        log_scaling_n_floor=512,
        log_scaling_alpha=0.1,
        logits_mup_width_multiplier=1.0,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )


# --- the faster inner functions -------------------------------------------------------------------------------------


def mirrored_rel_logits(self, relative_states, query_positions, key_positions):
    """In place of InklingRelativeLogits.forward: (batch, head, query, extent), farthest distance first."""
    return (relative_states @ self.proj.flip(-1)).transpose(1, 2)


def shear(mirrored, n_keys: int, far: float):
    """(..., n_queries, extent) by distance, farthest first -> (..., n_queries, n_keys) by key.

    The last query sees the last key at distance 0. Keys of the future get MASKED, keys past the extent `far`. A row is
    laid out as [far | biases | MASKED | far]; reading rows of `width` elements with pitch width - 1 moves each one more
    element to the right, and a row that starts left of its biases reads the far tail of the row above.
    """
    n_queries, extent = mirrored.shape[-2:]
    offset = n_keys - n_queries
    left = max(0, offset - extent + 1)
    start = extent - 1 - offset + left
    tail = max(1, n_queries - 1 - start)
    fill = lambda n, value: mirrored.new_full((1,), value).expand(*mirrored.shape[:-1], n)
    rows = torch.cat([fill(left, far), mirrored, fill(n_queries - 1, MASKED), fill(tail, far)], dim=-1)
    width = rows.shape[-1]
    flat = rows.flatten(-2)[..., : n_queries * (width - 1)]
    return flat.unflatten(-1, (n_queries, width - 1))[..., start : start + n_keys].contiguous()


def window_blocks(x, window: int):
    """(batch, head, n, d) -> (batch * n / window, head, 2 * window, d): each block behind the one before it."""
    batch, heads, n, d = x.shape
    blocks = F.pad(x, (0, 0, window, 0)).unfold(2, 2 * window, window)  # (batch, head, block, d, 2 * window)
    return blocks.permute(0, 2, 1, 4, 3).reshape(batch * (n // window), heads, 2 * window, d)


def sheared_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, position_bias=None, **kwargs):
    """In place of eager_attention_forward, for whole sequences without padding; position_bias is mirrored."""
    dtype = position_bias.dtype
    group = module.num_key_value_groups
    query, key, value = (x.to(dtype) for x in (query, key, value))
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    batch, heads, n, d = query.shape
    window = module.sliding_window
    if window is None:
        bias = shear(position_bias, n, 0.0)
    else:
        to_blocks = lambda x: x.unflatten(2, (n // window, window)).transpose(1, 2).flatten(0, 1)
        bias = shear(to_blocks(position_bias), 2 * window, MASKED)
        before_start = torch.arange(2 * window, device=query.device) < window
        first_block = torch.arange(batch * (n // window), device=query.device) % (n // window) == 0
        bias = bias.masked_fill(first_block[:, None, None, None] & before_start, MASKED)
        query, key, value = to_blocks(query), window_blocks(key, window), window_blocks(value, window)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, scale=scaling)
    if window is not None:
        out = out.unflatten(0, (batch, n // window)).transpose(1, 2).flatten(2, 3)
    return out.transpose(1, 2).contiguous(), None


def shifted_conv(hidden_states, weight, bias=None, activation=None, **kwargs):
    """In place of causal_conv1d_fn: (batch, channel, n), weight (channel, taps)."""
    n, taps = hidden_states.shape[-1], weight.shape[-1]
    padded = F.pad(hidden_states, (taps - 1, 0))
    return sum(weight[:, i, None] * padded[..., i : i + n] for i in range(taps))


@contextlib.contextmanager
def fast_inner_functions(model):
    saved = (
        modeling_inkling.InklingRelativeLogits.forward,
        modeling_inkling.causal_conv1d_fn,
        model.config._attn_implementation,
    )
    ALL_ATTENTION_FUNCTIONS.register("sheared", sheared_attention)
    modeling_inkling.InklingRelativeLogits.forward = mirrored_rel_logits
    modeling_inkling.causal_conv1d_fn = shifted_conv
    model.config._attn_implementation = "sheared"
    try:
        yield
    finally:
        modeling_inkling.InklingRelativeLogits.forward = saved[0]
        modeling_inkling.causal_conv1d_fn = saved[1]
        model.config._attn_implementation = saved[2]


# --- the checkpoint ---------------------------------------------------------------------------------------------------

CHECKPOINT_NAMES = [  # (in the class, in the checkpoint), as transformers' conversion_mapping.py has them
    ("lm_head.weight", "model.llm.unembed.weight"),
    ("model.embed_tokens.", "model.llm.embed."),
    ("model.", "model.llm."),
    (".self_attn.q_proj.", ".attn.wq_du."),
    (".self_attn.k_proj.", ".attn.wk_dv."),
    (".self_attn.v_proj.", ".attn.wv_dv."),
    (".self_attn.r_proj.", ".attn.wr_du."),
    (".self_attn.o_proj.", ".attn.wo_ud."),
    (".self_attn.", ".attn."),
    ("sconv.conv1d.", "sconv."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".mlp_norm."),
    (".down_proj.", ".w2_md."),
]


def checkpoint_tensors(model) -> dict:
    """The weights in bfloat16 under the names that Inkling's published checkpoints use."""
    state = {name: t.detach().to("cpu", torch.bfloat16) for name, t in model.state_dict().items()}
    tensors = {}
    for name, tensor in state.items():
        if name.endswith("up_proj.weight"):
            continue
        if name.endswith("gate_proj.weight"):  # gate and up share one matrix, row by row
            up = state[name.replace("gate_proj", "up_proj")]
            tensor = torch.stack([tensor, up], dim=1).flatten(0, 1)
            name = name.replace("gate_proj", "w13_dn")
        for ours, theirs in CHECKPOINT_NAMES:
            if ours in name and not (ours == "model." and name.startswith("model.llm.")):
                name = name.replace(ours, theirs, 1)
        tensors[name] = tensor.contiguous()
    return tensors


def save(model, out: pathlib.Path) -> None:
    save_file(checkpoint_tensors(model), out / "model.safetensors", metadata={"format": "pt"})
    text = {k: v for k, v in model.config.to_diff_dict().items() if not k.startswith("_")}
    text |= {k: getattr(model.config, k) for k in ("hidden_act", "rms_norm_eps", "d_rel", "conv_kernel_size")}
    config = {"architectures": ["InklingForCausalLM"], "model_type": InklingConfig.model_type}
    config |= {"dtype": "bfloat16", "text_config": dict(sorted(text.items()))}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


# --- training ---------------------------------------------------------------------------------------------------------


def load_bytes(path: pathlib.Path, device) -> torch.Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).to(device)


def loss_of(model, windows, autocast=contextlib.nullcontext):
    """Mean next-byte loss of (batch, n + 1) bytes, in nats."""
    with autocast():
        logits = model(input_ids=windows[:, :-1].long(), use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].long().flatten())


@torch.no_grad()
def heldout_bits_per_byte(model, text, autocast) -> float:
    """Over consecutive windows of CONTEXT bytes, each on its own; the odd end of the text is left out."""
    model.eval()
    windows = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    padded = F.pad(windows, (0, 1))  # the last position predicts nothing, but keeps the length at CONTEXT
    total = 0.0
    for chunk in padded.split(8):
        with autocast():
            logits = model(input_ids=chunk[:, :-1].long(), use_cache=False).logits[:, :-1].float()
        total += F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:-1].long().flatten(), reduction="sum").item()
    model.train()
    return total / (windows.numel() - len(windows)) / math.log(2)


def new_model(args, device):
    model = InklingForCausalLM(nano_config()).to(device=device, dtype=torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            # unit q and k give scores within +-1 at scale 1/head_dim: start at the usual 1/sqrt(head_dim) instead
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                norm.weight.fill_(layer.self_attn.head_dim**0.25)
    for layer in model.model.layers:
        for branch in (layer.attn_sconv, layer.mlp_sconv):  # dropout on both branches, before the residual addition
            branch.register_forward_hook(lambda m, i, out: F.dropout(out, args.dropout, m.training))
    return model


def loss_and_gradients(model, windows, autocast=contextlib.nullcontext):
    loss = loss_of(model, windows, autocast)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return loss.item(), gradients


def check_inner_functions(model, text):
    """The replaced functions must give the classes' own loss and gradient (float32, one window, no dropout)."""
    windows = text[: CONTEXT + 1].view(1, -1)
    model.eval()
    loss, gradients = loss_and_gradients(model, windows)
    with fast_inner_functions(model):
        fast_loss, fast = loss_and_gradients(model, windows)
    model.train()
    worst = max(((g - fast[n]).norm() / (g.norm() + 1e-12)).item() for n, g in gradients.items())
    print(f"check: loss {loss:.6f}, replaced {fast_loss:.6f}, worst relative gradient difference {worst:.2e}", flush=True)
    assert abs(loss - fast_loss) < 1e-4 * loss and worst < 1e-2, "the replaced functions disagree with the classes"


def compile_layers(model, windows, autocast) -> bool:
    """Compile the layers if the compiler gives their gradients (up to bfloat16 and other dropout masks), else do not."""
    _, gradients = loss_and_gradients(model, windows, autocast)
    try:
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward)
        _, compiled = loss_and_gradients(model, windows, autocast)
        worst = min(F.cosine_similarity(g.flatten(), compiled[n].flatten(), dim=0).item() for n, g in gradients.items())
        finite = all(g.isfinite().all() for g in compiled.values())
        print(f"compiled layers: lowest cosine to the uncompiled gradients {worst:.4f}, finite: {bool(finite)}", flush=True)
        agrees = finite and worst > 0.8
    except Exception as error:  # whatever the compiler stumbles over here, training goes on without it
        print(f"compiled layers: {error}", flush=True)
        agrees = False
    if not agrees:
        print("training without torch.compile", flush=True)
        model.zero_grad(set_to_none=True)
        for layer in model.model.layers:
            del layer.forward
    return agrees


def optimizer_of(model, args, fused: bool):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=fused)


def learning_rate(args, step: int, progress: float) -> float:
    """Linear warm-up over 200 steps, and a cosine over the run down to 2 %."""
    return args.lr * min(1.0, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(args) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    torch.manual_seed(args.seed)
    started = time.monotonic()
    text, heldout = load_bytes(args.train, device), load_bytes(args.heldout, device)
    model = new_model(args, device)
    n_parameters = sum(p.numel() for p in model.parameters())
    machine = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{n_parameters:,} parameters, {len(text):,} bytes of text, {machine}", flush=True)
    autocast = lambda: torch.autocast(device.type, torch.bfloat16)
    check_inner_functions(model, text)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # the memory-efficient kernel gives the gradient of the bias

    optimizer = optimizer_of(model, args, on_gpu)
    model.train()
    step, seen, log, saved_at = 0, 0, [], 0.0
    window = torch.arange(CONTEXT + 1, device=device)
    with fast_inner_functions(model):
        if args.compile:
            starts = torch.randint(0, len(text) - CONTEXT, (args.batch, 1), device=device)
            compile_layers(model, text[starts + window], autocast)
        while True:
            elapsed = time.monotonic() - started
            progress = max(elapsed / (60 * args.minutes), step / args.max_steps)
            if progress >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(args, step, progress)
            starts = torch.randint(0, len(text) - CONTEXT, (args.batch, 1), device=device)
            loss = loss_of(model, text[starts + window], autocast)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step, seen = step + 1, seen + args.batch * CONTEXT
            if step % args.log_steps == 0 or step <= 3:
                bits = loss.item() / math.log(2)  # waits for the device, so the clock is honest here
                assert math.isfinite(bits), f"step {step}: the loss is {bits}"
                entry = {"step": step, "seconds": round(time.monotonic() - started, 1), "bytes": seen, "train": bits}
                if step % (5 * args.log_steps) == 0:
                    entry["heldout"] = heldout_bits_per_byte(model, heldout, autocast)
                log.append(entry)
                print(json.dumps(entry), flush=True)
                if entry["seconds"] - saved_at > 60 * args.save_minutes:
                    saved_at = entry["seconds"]
                    save(model, args.out)
        bits = heldout_bits_per_byte(model, heldout, autocast)
    save(model, args.out)
    summary = {
        "arguments": {k: v for k, v in vars(args).items() if not isinstance(v, pathlib.Path)},
        "machine": machine,
        "torch": torch.__version__,
        "parameters": n_parameters,
        "steps": step,
        "seconds": round(time.monotonic() - started, 1),
        "bytes_seen": seen,
        "heldout_bits_per_byte": bits,
        "log": log,
    }
    (args.out / "train.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{step} steps, {seen:,} bytes, held-out {bits:.4f} bits per byte (bfloat16 autocast)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=pathlib.Path, help="text to train on")
    parser.add_argument("heldout", type=pathlib.Path, help="text to be judged by")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    parser.add_argument("--minutes", type=float, default=8.0, help="stop after so much time; the schedule follows it")
    parser.add_argument("--max-steps", type=int, default=10**9, help="stop after so many steps")
    parser.add_argument("--save-minutes", type=float, default=2.0)
    parser.add_argument("--log-steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help=f"windows of {CONTEXT} bytes a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile the layers")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)


if __name__ == "__main__":
    main()
