"""The vLLM plugin: on a module of the expected shape everywhere, and on vLLM's own files where a wheel is at hand.

`FLASHREL_VLLM=folder` (see vllm_files.py, tools/test_vllm.sh) brings vLLM's files; without a GPU its Triton kernels run in
Triton's interpreter.
"""

import logging
import sys
import types

import numpy as np
import pytest
from oracle import BFLOAT16, Problem, attention

torch = pytest.importorskip("torch")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

import vllm_files  # noqa: E402

import flashrel  # noqa: E402
from flashrel import vllm as plugin  # noqa: E402

needs_vllm = pytest.mark.skipif(not vllm_files.ROOT, reason="FLASHREL_VLLM names no unpacked vLLM wheel")


@pytest.fixture(autouse=True)
def no_hooks_left():
    yield
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, plugin._PatchOnImport)]
    sys.modules.pop(plugin.MODULE, None)


def lookalike(**changes):
    """A module with the names and signatures that the plugin looks for."""
    namespace = {}
    exec(
        f"def kernel({', '.join(plugin._KERNEL)}): return 'vllm'\ndef fused_qkvr_prep({', '.join(plugin._PREP)}): pass",
        namespace,
    )
    module = types.ModuleType(plugin.MODULE)
    module._INKLING_FA4_REL_ATTENTION_KERNEL = namespace["kernel"]
    module.fused_qkvr_prep = namespace["fused_qkvr_prep"]
    for name, value in changes.items():
        setattr(module, name, value)
    return module


def test_entry_point_is_installed():
    from importlib.metadata import entry_points

    names = {point.name: point.value for point in entry_points(group="vllm.general_plugins")}
    if "flashrel" not in names:
        pytest.skip("the package is not installed, only on the path")
    assert names["flashrel"] == "flashrel.vllm:register"


@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_off_unless_asked_for(monkeypatch, caplog, value):
    monkeypatch.setenv("FLASHREL", value)
    module = sys.modules[plugin.MODULE] = lookalike()
    before = dict(vars(module))
    plugin.register()
    assert vars(module) == before
    assert ("expected 0, 1, fused or operator" in caplog.text) == (value == "yes")


@pytest.mark.parametrize(("value", "fused"), [("1", True), ("fused", True), ("operator", False)])
def test_levels(monkeypatch, value, fused):
    monkeypatch.setenv("FLASHREL", value)
    module = sys.modules[plugin.MODULE] = lookalike()
    plugin.register()
    plugin.register()  # vLLM calls it in every process, perhaps more than once
    assert isinstance(module._INKLING_FA4_REL_ATTENTION_KERNEL, plugin.Kernel)
    assert not isinstance(module._INKLING_FA4_REL_ATTENTION_KERNEL.original, plugin.Kernel)
    assert isinstance(module.fused_qkvr_prep, plugin.Preparation) == fused


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"_INKLING_FA4_REL_ATTENTION_KERNEL": lambda q, k, v: None}, r"an operator with the arguments \['q', 'k', 'v'\]"),
        ({"fused_qkvr_prep": lambda qkvr: None}, r"fused_qkvr_prep with the arguments \['qkvr'\]"),
    ],
)
def test_an_unknown_vllm_is_left_alone(monkeypatch, caplog, changes, found):
    monkeypatch.setenv("FLASHREL", "1")
    module = sys.modules[plugin.MODULE] = lookalike(**changes)
    before = dict(vars(module))
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert vars(module) == before
    import re

    assert re.search(found, caplog.text) and "vLLM is left alone" in caplog.text


# ---------------------------------------------------------------- vLLM's own files


def layer(module, is_local, n_q_heads=4, n_kv_heads=2, extent=32):
    """vLLM's InklingAttention with what _attention and forward read, without an engine to build it."""
    self = module.InklingAttention.__new__(module.InklingAttention)
    torch.nn.Module.__init__(self)
    self.prefix, self.is_local, self.head_dim, self.d_rel = "layer", is_local, 128, 16
    self.num_heads, self.num_kv_heads, self.rel_extent = n_q_heads, n_kv_heads, extent
    self.scaling, self._max_kv_len = 1 / 128, 4096
    self.window_size = (extent - 1, 0) if is_local else (-1, -1)
    self.rel_logits_proj = module.RelLogitsProj(16, extent)
    proj = torch.randn(16, extent, generator=torch.Generator().manual_seed(5)) / 4
    self.rel_logits_proj.proj = torch.nn.Parameter(proj.to(DEVICE, torch.bfloat16), requires_grad=False)
    return self


def to_device(x):
    if x.dtype == BFLOAT16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(DEVICE)
    return torch.from_numpy(x).to(DEVICE)


def to_numpy(x):
    return x.cpu().view(torch.int16).numpy().view(BFLOAT16)


def packed_cache(k, v, layout):
    """vLLM's cache: K and V are the halves of one last dimension; (blocks, heads, slots, 2 * head_dim) as vLLM sees it."""
    both = np.nan_to_num(np.concatenate([k, v], -1).astype(np.float32)).astype(BFLOAT16)
    if layout == "HND":
        return to_device(np.ascontiguousarray(both.swapaxes(1, 2)))
    return to_device(both).transpose(1, 2)


@needs_vllm
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("level", ["operator", "fused"])
def test_attention_of_vllms_layer(monkeypatch, layout, is_local, level):
    """InklingAttention._attention with metadata as vLLM makes it: padding rows, garbage table entries, packed caches."""
    monkeypatch.setenv("FLASHREL", level)
    plugin.register()  # before the import, as a plugin does
    module, set_metadata = vllm_files.load()
    assert any(isinstance(getattr(module, name, None), plugin.Kernel) for name in plugin.KERNEL_NAMES)
    self = layer(module, is_local)
    arrays = Problem(
        [1, 9, 1, 40], [300, 9, 1, 77], n_q_heads=4, n_kv_heads=2, head_dim=128, page_size=16, dtype=BFLOAT16, d_rel=16,
        rel_extent=32, rel_scale=not is_local, window_size=self.window_size, softmax_scale=1 / 128,
    ).arrays()  # fmt: skip
    arrays["rel_proj"] = to_numpy(self.rel_logits_proj.proj.data)
    self.kv_cache = packed_cache(arrays["k_cache"], arrays["v_cache"], layout)
    n_tokens, n_padded = 51, 64
    set_metadata({
        "layer": types.SimpleNamespace(
            num_actual_tokens=n_tokens, max_query_len=40, block_table=to_device(arrays["block_table"]),
            seq_lens=to_device(arrays["cache_seqlens"]), query_start_loc=to_device(arrays["cu_seqlens_q"]),
        )
    })  # fmt: skip

    def padded(x):
        more = np.full((n_padded - n_tokens, *x.shape[1:]), np.nan, x.dtype)
        return to_device(np.concatenate([x, more]))

    rel, tau = padded(arrays["rel"]), None if is_local else padded(arrays["rel_scale"])
    if level == "fused":
        bias = plugin.FusedBias(rel, self.rel_logits_proj.proj, tau)
    else:
        bias = self.rel_logits_proj(rel)
        bias = bias if tau is None else (bias.float() * tau[:, None, None]).bfloat16()
        for name in ("rel", "rel_proj", "rel_scale"):
            arrays.pop(name, None)
        arrays["rel_logits"] = to_numpy(bias[:n_tokens])  # as vLLM rounds them: twice
    output = torch.full((n_padded, 4, 128), 7.0, dtype=torch.bfloat16, device=DEVICE)
    with torch.no_grad():
        self._attention(padded(arrays["q"]), bias, output)
    expected, _ = attention(**arrays)
    np.testing.assert_allclose(to_numpy(output[:n_tokens]).astype(np.float64), expected, atol=2e-2, rtol=2e-2)
    assert (output[n_tokens:] == 7).all(), "rows past num_actual_tokens were written"


def test_layers_of_one_pass_share_a_schedule(monkeypatch):
    """Two kinds of layer, three layers each, two passes with other lengths: four schedules, and everybody's own results."""
    made = []
    monkeypatch.setattr(plugin, "schedule", lambda *a, **k: made.append(flashrel.schedule(*a, **k)) or made[-1])
    context = types.SimpleNamespace()
    kernel = plugin.Kernel(None, lambda: context)
    for lengths in ([40, 9], [33, 7]):
        context = types.SimpleNamespace()
        shape = {"n_q_heads": 4, "n_kv_heads": 2, "head_dim": 64, "page_size": 16, "d_rel": 16}
        arrays = Problem([1, 5], [40, 9], dtype=BFLOAT16, **shape).arrays()
        tensors = {name: to_device(x) if isinstance(x, np.ndarray) else x for name, x in arrays.items()}
        tensors["cache_seqlens"].copy_(torch.tensor(lengths))
        bias = plugin.FusedBias(tensors.pop("rel"), tensors.pop("rel_proj"), None)
        names = "block_table", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale"
        rest = {name: tensors[name] for name in names}
        for layer_idx in range(6):
            q, window_size = tensors["q"] * (1 + layer_idx), (7, 0) if layer_idx % 2 else (-1, -1)
            got = kernel(
                q, tensors["k_cache"], tensors["v_cache"], **rest, causal=True, window_size=window_size, rel_extent=1,
                rel_logits=bias,
            )  # fmt: skip
            expected = flashrel.rel_attention(
                q, tensors["k_cache"], tensors["v_cache"], **rest, window_size=window_size, rel=bias.rel, rel_proj=bias.rel_proj
            )
            assert torch.equal(got, expected)
    assert len(made) == 4


two_streams = pytest.mark.skipif(DEVICE == "cpu", reason="vLLM's path for many tokens needs CUDA streams")


@needs_vllm
@pytest.mark.parametrize("n_tokens", [5, pytest.param(200, marks=two_streams)])
@pytest.mark.parametrize("is_local", [False, True])
def test_preparation_keeps_everything_but_the_projection(monkeypatch, is_local, n_tokens):
    """vLLM's fused_qkvr_prep beside the plugin's: q and caches bit for bit, and r, proj, tau that make its rel_logits."""
    pytest.importorskip("triton")
    monkeypatch.setenv("FLASHREL", "1")
    plugin.register()
    module, _ = vllm_files.load()
    self = layer(module, is_local)
    heads, kv_heads, width = 4, 2, 4
    random = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, generator=random).to(DEVICE, torch.bfloat16)

    def integers(*values):
        return torch.tensor(values, device=DEVICE)

    tokens = torch.arange(n_tokens, device=DEVICE)
    n_blocks = n_tokens // 16 + 2
    qkvr = draw(n_tokens, (heads + 2 * kv_heads) * 128 + heads * 16)
    weights = draw(kv_heads * 128, width), draw(kv_heads * 128, width), draw(128), draw(128)
    tau = None if is_local else 1 + torch.rand(n_tokens, generator=random).to(DEVICE)

    def run(prepare):
        conv_cache = torch.zeros(n_blocks, kv_heads, 16, 256, dtype=torch.bfloat16, device=DEVICE)
        kv = torch.zeros(n_blocks, 16, kv_heads, 256, dtype=torch.bfloat16, device=DEVICE)
        q, bias = prepare(
            qkvr, *weights, self.rel_logits_proj.proj.data, 1e-6, heads, kv_heads, 128, 16, conv_cache, kv[..., :128],
            kv[..., 128:], tokens, torch.arange(n_blocks, device=DEVICE, dtype=torch.int32)[None],
            torch.zeros_like(tokens), tokens, torch.zeros_like(tokens), tokens, 0, 128, 16, tau,
        )  # fmt: skip
        return q, bias, conv_cache, kv

    q, bias, conv_cache, kv = run(module.fused_qkvr_prep)
    q_vllm, rel_logits, conv_cache_vllm, kv_vllm = run(module.fused_qkvr_prep.original)
    assert torch.equal(q, q_vllm) and torch.equal(conv_cache, conv_cache_vllm) and torch.equal(kv, kv_vllm)
    assert kv.abs().sum() > 0
    ours = bias.rel.float() @ bias.rel_proj.float()
    ours = ours if tau is None else ours * bias.rel_scale[:, None, None]
    torch.testing.assert_close(ours, rel_logits.float(), atol=1e-2, rtol=2e-2)
