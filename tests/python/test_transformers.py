"""attn_implementation="flashrel" against transformers' eager path, on a small random Inkling model."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
modeling = pytest.importorskip("transformers.models.inkling.modeling_inkling")

from transformers import InklingTextConfig  # noqa: E402

import flashrel.transformers  # noqa: E402

flashrel.transformers.register()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD_DIM = 64


def model(attn_implementation, dtype, seed=0):
    """Three layers, two of them local; log scaling starts early enough to matter; weights large enough to matter."""
    torch.manual_seed(seed)
    config = InklingTextConfig(
        vocab_size=128, hidden_size=128, num_hidden_layers=3, local_layer_ids=[0, 1], mlp_layer_types=["dense"] * 3,
        num_attention_heads=4, num_key_value_heads=1, head_dim=HEAD_DIM, swa_num_attention_heads=4,
        swa_num_key_value_heads=2, swa_head_dim=HEAD_DIM, sliding_window_size=24, rel_extent=40, d_rel=16,
        log_scaling_n_floor=16, intermediate_size=128, initializer_range=0.2, logits_mup_width_multiplier=1.0,
        eos_token_id=None, bos_token_id=None, attn_implementation=attn_implementation,
    )  # fmt: skip
    return modeling.InklingForCausalLM(config).to(DEVICE, dtype).eval()


def pair(dtype):
    eager, ours = model("eager", dtype), model("flashrel", dtype)
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == "flashrel"
    return eager, ours


def tokens(batch, length, seed=1):
    return torch.randint(3, 128, (batch, length), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def reference(ids, **inputs):
    """float32 logits of the eager path."""
    with torch.no_grad():
        return model("eager", torch.float32)(ids, **inputs).logits


def assert_close(got, expected, dtype):
    scale = expected.float().abs().max()
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}[dtype]
    error = (got.float() - expected.float()).abs().max() / scale
    assert error < tolerance, f"logits differ by {error:.3g} of their largest, allowed {tolerance}"


DTYPES = [torch.bfloat16] if DEVICE == "cuda" else [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (3, 100)])
def test_prefill_logits(dtype, shape):
    eager, ours = pair(dtype)
    ids = tokens(*shape)
    with torch.no_grad():
        got, expected = ours(ids).logits, eager(ids).logits
    assert_close(got, expected, dtype)
    # The fused bias is rounded less often than transformers': the error against float32 must not grow.
    if dtype != torch.float32:
        truth = reference(ids)
        rms = [(x.float() - truth).pow(2).mean().sqrt() for x in (got, expected)]
        assert rms[0] <= 1.3 * rms[1] + 1e-6


def test_the_bias_matters_here():
    """Without its bias this model gives other logits: the tests above would see a missing one."""
    eager, ours = pair(DTYPES[0])
    ids = tokens(2, 60)
    with torch.no_grad():
        expected = eager(ids).logits
        for layer in ours.model.layers:
            layer.self_attn.rel_logits_proj.proj.zero_()
        assert (ours(ids).logits - expected).abs().max() > 0.05 * expected.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cached_decode_in_chunks_equals_prefill(dtype):
    _, ours = pair(dtype)
    ids = tokens(2, 75)
    cache = transformers.DynamicCache(config=ours.config)
    with torch.no_grad():
        whole = ours(ids).logits
        parts = [ours(chunk, past_key_values=cache).logits for chunk in ids.split([30, 1, 1, 40, 1, 2], dim=1)]
    assert_close(torch.cat(parts, 1), whole, dtype)


def test_greedy_tokens_over_256_steps():
    """float32 on the CPU, where equal tokens can be demanded; bfloat16 on the GPU, where a tie may turn: at most one does."""
    dtype = DTYPES[0]
    eager, ours = pair(dtype)
    ids = tokens(2, 20)
    options = {"max_new_tokens": 256, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        got, expected = ours.generate(ids, **options), eager.generate(ids, **options)
    assert got.shape == (2, 276)
    if dtype == torch.float32:
        assert torch.equal(got, expected)
        return
    for row, other in zip(got, expected):
        different = (row != other).nonzero()
        if len(different):  # the two paths' logits at that step: a tie within rounding, or a fault
            step = int(different[0])
            with torch.no_grad():
                logits = eager(other[None, :step]).logits[0, -1].float()
            gap = logits[other[step]] - logits[row[step]]
            assert gap <= 2**-6 * logits.abs().max(), f"step {step}: token differs with a gap of {gap}"


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side):
    eager, ours = pair(DTYPES[0])
    ids = tokens(3, 50)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 13, 49)):
        piece = slice(0, padding) if side == "left" else slice(50 - padding, 50)
        mask[row, piece] = 0
    with torch.no_grad():
        got, expected = ours(ids, attention_mask=mask).logits, eager(ids, attention_mask=mask).logits
    assert_close(got[mask.bool()], expected[mask.bool()], DTYPES[0])


@pytest.mark.skipif(DEVICE != "cpu", reason="equal tokens can be demanded in float32 only, which is not served on CUDA")
def test_left_padded_generation():
    eager, ours = pair(torch.float32)
    ids = tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[1, :17] = 0
    options = {"attention_mask": mask, "max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        assert torch.equal(ours.generate(ids, **options), eager.generate(ids, **options))


def test_refusals_are_named():
    _, ours = pair(DTYPES[0])
    ids = tokens(1, 20)
    hole = torch.ones_like(ids)
    hole[0, 7] = 0
    packed = torch.cat([torch.arange(12), torch.arange(8)])[None].to(DEVICE)
    with torch.no_grad():
        with pytest.raises(ValueError, match="attention_mask: got a row with a hole"):
            ours(ids, attention_mask=hole)
        with pytest.raises(ValueError, match="got packed position_ids"):
            ours(ids, position_ids=packed, use_cache=False)
    with pytest.raises(ValueError, match="q: requires a gradient"):
        ours(ids)


def test_other_models_are_refused_and_registering_twice_is_fine():
    flashrel.transformers.register()
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        attn_implementation="flashrel",
    )  # fmt: skip
    llama = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad(), pytest.raises(ValueError, match="got LlamaAttention, expected an InklingAttention layer"):
        llama(torch.ones(1, 4, dtype=torch.long))


def test_an_unknown_layer_is_refused(monkeypatch):
    def forward(self, hidden_states, something_new):
        pass

    monkeypatch.setattr(modeling.InklingAttention, "forward", forward)
    with pytest.raises(RuntimeError, match="InklingAttention.forward takes .*something_new"):
        flashrel.transformers.register()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_memory_grows_with_length_not_its_square():
    """32K tokens: eager would need 4 heads x 32K x 32K x 2 bytes = 8 GiB a layer for the bias alone."""
    peaks = []
    for length in (16384, 32768):
        ours = model("flashrel", torch.bfloat16)
        ids = tokens(1, length)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            ours(ids, use_cache=False, logits_to_keep=1)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    print(f"\npeak: {peaks[0] / 2**20:.0f} MiB at 16K, {peaks[1] / 2**20:.0f} MiB at 32K tokens")
    assert peaks[1] < 2.3 * peaks[0] and peaks[1] < 2**30
