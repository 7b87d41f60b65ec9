#!/usr/bin/env python3
"""What transformers computes with inkling-nano: reference/reference.safetensors, the figures the C++ program must meet.

    ./reference.py                     needs transformers 5.17 or later, torch, safetensors; a CPU is enough

The released model/ is loaded by transformers' own InklingForConditionalGeneration, so that its conversion table, not ours,
reads the checkpoint's tensor names; then its language model runs as InklingForCausalLM, the class it was trained with (in
5.17 the multimodal class applies embed_norm twice). Weights are the stored bfloat16 values, computed with in float32 by the
plain (eager) attention. Tensors written:

    window_nats      (n_windows)   float32   loss of each window of CONTEXT bytes of heldout.txt, summed over bytes 1 ...
    prompt           (n_prompt)    int32     the first bytes of heldout.txt: longer than the window and the extent
    logits           (64, 256)     float32   of the last 64 positions of the prompt
    greedy           (n_greedy)    int32     the likeliest continuation of the prompt, byte by byte
"""

import argparse
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import InklingConfig, InklingForCausalLM, InklingForConditionalGeneration

HERE = pathlib.Path(__file__).parent
CONTEXT = 2048
N_PROMPT, N_LOGITS, N_GREEDY = 1600, 64, 96


def load_model():
    config = InklingConfig.from_pretrained(HERE / "model")
    # the towers for pictures and sound are no part of this model: the smallest that the classes accept
    vision = config.vision_config
    vision.patch_size, vision.temporal_patch_size, vision.num_hidden_layers, vision.num_channels = 2, 2, 4, 1
    config.audio_config.n_mel_bins = config.audio_config.mel_vocab_size = 1
    model, info = InklingForConditionalGeneration.from_pretrained(
        HERE / "model", config=config, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    missing = [name for name in info["missing_keys"] if "_tower." not in name]
    wrong = missing + list(info["unexpected_keys"]) + list(info["mismatched_keys"])
    assert not wrong, f"tensors of the language model that do not fit: {wrong}"
    causal = InklingForCausalLM(config.text_config)
    causal.model, causal.lm_head = model.model.language_model, model.lm_head
    return causal.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_grad_enabled(False)
    model = load_model()
    text = torch.frombuffer(bytearray((HERE / "reference/heldout.txt").read_bytes()), dtype=torch.uint8).long()

    windows = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    nats = []
    for window in windows:
        logits = model(input_ids=window[None], use_cache=False).logits[0]
        nats.append(F.cross_entropy(logits[:-1], window[1:], reduction="sum").item())
    bits = sum(nats) / (len(nats) * (CONTEXT - 1)) / math.log(2)
    print(f"held-out: {bits:.5f} bits per byte over {len(nats)} windows of {CONTEXT}")

    prompt = text[:N_PROMPT]
    logits = model(input_ids=prompt[None], use_cache=False).logits[0, -N_LOGITS:]
    output = model(input_ids=prompt[None], use_cache=True)
    greedy = []
    for _ in range(N_GREEDY):
        greedy.append(output.logits[0, -1].argmax().item())
        output = model(input_ids=torch.tensor([[greedy[-1]]]), past_key_values=output.past_key_values, use_cache=True)
    print("greedy:", bytes(greedy).decode("ascii"))

    tensors = {
        "window_nats": torch.tensor(nats, dtype=torch.float32),
        "prompt": prompt.to(torch.int32),
        "logits": logits.float().contiguous(),
        "greedy": torch.tensor(greedy, dtype=torch.int32),
    }
    save_file(tensors, HERE / "reference/reference.safetensors")


if __name__ == "__main__":
    main()
