"""inkling-nano (examples/inkling-nano), a trained model: transformers with attn_implementation="flashrel" against eager.

The example's stored prompt is longer than the window and the extent; eager in float32 on the CPU is what the others must meet.
"""

import importlib.util
import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.inkling")
safetensors = pytest.importorskip("safetensors.torch")

import flashrel.transformers  # noqa: E402

NANO = pathlib.Path(__file__).resolve().parents[2] / "examples/inkling-nano"
if not (NANO / "reference.py").exists():
    pytest.skip("inkling-nano is not in this checkout", allow_module_level=True)


@pytest.fixture(scope="module")
def nano():
    """(model, stored tensors); the model as its own reference program loads it, float32 on the CPU."""
    flashrel.transformers.register()
    spec = importlib.util.spec_from_file_location("inkling_nano_reference", NANO / "reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    return reference.load_model(), safetensors.load_file(NANO / "reference/reference.safetensors")


def use(model, name):
    model.config._attn_implementation = name
    for layer in model.model.layers:
        layer.self_attn.config._attn_implementation = name
    model.model.config._attn_implementation = name


def logits_of(model, name, prompt):
    use(model, name)
    with torch.no_grad():
        return model(prompt, use_cache=False).logits[0].float().cpu()


def test_logits(nano):
    model, stored = nano
    prompt = stored["prompt"].long()[None]
    assert prompt.shape[1] > 1024 + 512
    torch.testing.assert_close(logits_of(model, "flashrel", prompt), logits_of(model, "eager", prompt), atol=2e-4, rtol=1e-4)


def test_256_greedy_tokens(nano):
    """A prompt of 700 bytes and 256 steps: the local layers' window fills, slides, and the cache with it."""
    model, stored = nano
    results = []
    for name in ("eager", "flashrel"):
        use(model, name)
        with torch.no_grad():
            results.append(
                model.generate(stored["prompt"][None, :700].long(), max_new_tokens=256, do_sample=False, pad_token_id=0)
            )
    assert torch.equal(*results)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_bfloat16(nano):
    """On the GPU the released bfloat16 weights run in bfloat16: no further from float32 than eager is."""
    import copy

    model, stored = nano
    prompt = stored["prompt"].long()[None]
    truth = logits_of(model, "eager", prompt)
    on_gpu = copy.deepcopy(model).to("cuda", torch.bfloat16)
    errors = {
        name: (logits_of(on_gpu, name, prompt.cuda()) - truth).pow(2).mean().sqrt().item() for name in ("eager", "flashrel")
    }
    print(f"\nrms error of the logits, bfloat16 on the GPU: {errors}")
    assert errors["flashrel"] <= 1.2 * errors["eager"]
