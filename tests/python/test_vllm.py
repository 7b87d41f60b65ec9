"""The vLLM plugin: on a module of the expected shape everywhere, and on vLLM's own files where a wheel is at hand.

`FLASHREL_VLLM=folder` (see vllm_files.py, tools/test_vllm.sh) brings vLLM's files; without a GPU its Triton kernels run in
Triton's interpreter.
"""

import logging
import re
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


def forget_the_plugin():
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, plugin._PatchOnImport)]
    sys.modules.pop(plugin.MODULE, None)
    vllm_files.unload()


@pytest.fixture(autouse=True)
def no_hooks_left():
    yield
    forget_the_plugin()


MISSING = object()


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
        delattr(module, name) if value is MISSING else setattr(module, name, value)
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
        ({"fused_qkvr_prep": None}, r"fused_qkvr_prep with the arguments \[\]"),
        (
            {"_INKLING_FA4_REL_ATTENTION_KERNEL": MISSING},
            "no _INKLING_FA4_REL_ATTENTION_KERNEL or INKLING_FA4_REL_ATTENTION_KERNEL",
        ),
    ],
)
def test_an_unknown_vllm_is_left_alone(monkeypatch, caplog, changes, found):
    monkeypatch.setenv("FLASHREL", "1")
    module = sys.modules[plugin.MODULE] = lookalike(**changes)
    before = dict(vars(module))
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert vars(module) == before
    assert re.search(found, caplog.text) and "vLLM is left alone" in caplog.text


def test_the_operator_can_be_replaced_where_the_preparation_is_unknown(monkeypatch):
    monkeypatch.setenv("FLASHREL", "operator")
    module = sys.modules[plugin.MODULE] = lookalike(fused_qkvr_prep=lambda qkvr: None)
    plugin.register()
    assert isinstance(module._INKLING_FA4_REL_ATTENTION_KERNEL, plugin.Kernel)
    assert not isinstance(module.fused_qkvr_prep, plugin.Preparation)


# ---------------------------------------------------------------- vLLM's own files


def layer(module, is_local):
    """vLLM's InklingAttention with what _attention reads, without an engine to build it: a layer of the large model, as one of
    eight GPUs has it.
    """
    n_q_heads, n_kv_heads, extent = (8, 2, 512) if is_local else (8, 1, 1024)
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
        [1, 9, 1, 40], [1500, 9, 1, 700], n_q_heads=8, n_kv_heads=self.num_kv_heads, head_dim=128, page_size=16, dtype=BFLOAT16,
        d_rel=16, rel_extent=self.rel_extent, rel_scale=not is_local, window_size=self.window_size, softmax_scale=1 / 128,
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
    output = torch.full((n_padded, 8, 128), 7.0, dtype=torch.bfloat16, device=DEVICE)
    with torch.no_grad():
        self._attention(padded(arrays["q"]), bias, output)
    expected, _ = attention(**arrays)
    np.testing.assert_allclose(to_numpy(output[:n_tokens]).astype(np.float64), expected, atol=2e-2, rtol=2e-2)
    assert (output[n_tokens:] == 7).all(), "rows past num_actual_tokens were written"


class Pass:
    """Six layers of two kinds, as vLLM runs them in one forward pass over one batch."""

    def __init__(self):
        shape = {"n_q_heads": 4, "n_kv_heads": 2, "head_dim": 64, "page_size": 16, "d_rel": 16}
        arrays = Problem([1, 5], [40, 9], dtype=BFLOAT16, **shape).arrays()
        tensors = {name: to_device(x) if isinstance(x, np.ndarray) else x for name, x in arrays.items()}
        self.q, self.caches = tensors["q"], (tensors["k_cache"], tensors["v_cache"])
        self.rel, self.rel_proj, self.lengths = tensors["rel"], tensors["rel_proj"], tensors["cache_seqlens"]
        names = "block_table", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale"
        self.rest = {name: tensors[name] for name in names}
        self.outs = [torch.empty_like(self.q) for _ in range(6)]

    def layers(self):
        """(q, window, out) of each."""
        return [(self.q * (1 + i), (7, 0) if i % 2 else (-1, -1), out) for i, out in enumerate(self.outs)]

    def run(self, kernel):
        bias = plugin.FusedBias(self.rel, self.rel_proj, None)
        for q, window_size, out in self.layers():
            kernel(
                q, *self.caches, **self.rest, causal=True, window_size=window_size, rel_extent=1, rel_logits=bias, out=out
            )  # fmt: skip

    def assert_right(self):
        for q, window_size, out in self.layers():
            assert torch.equal(
                out,
                flashrel.rel_attention(
                    q, *self.caches, **self.rest, window_size=window_size, rel=self.rel, rel_proj=self.rel_proj
                ),
            )


def test_layers_of_one_pass_share_a_schedule(monkeypatch):
    """Two kinds of layer, three layers each, two passes with other lengths: four schedules, and everybody's own results."""
    made = []
    monkeypatch.setattr(plugin, "schedule", lambda *a, **k: made.append(flashrel.schedule(*a, **k)) or made[-1])
    context = None
    kernel, one_pass = plugin.Kernel(None, lambda: context), Pass()
    for lengths in ([40, 9], [33, 7]):
        context = types.SimpleNamespace()
        one_pass.lengths.copy_(torch.tensor(lengths))
        one_pass.run(kernel)
        one_pass.assert_right()
    assert len(made) == 4


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
def test_a_captured_pass_is_right_for_other_lengths():
    """vLLM's way with CUDA graphs: a warm-up pass, a captured one, replays after lengths and data changed in place."""
    context = types.SimpleNamespace()
    kernel, one_pass = plugin.Kernel(None, lambda: context), Pass()
    one_pass.run(kernel)
    torch.cuda.synchronize()
    context = types.SimpleNamespace()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one_pass.run(kernel)
    for lengths in ([33, 7], [1, 5], [40, 9]):
        one_pass.lengths.copy_(torch.tensor(lengths))
        one_pass.rel.add_(0.25)
        for out in one_pass.outs:
            out.fill_(7)
        graph.replay()
        one_pass.assert_right()


two_streams = pytest.mark.skipif(DEVICE == "cpu", reason="vLLM's path for many tokens needs CUDA streams")


class Prompt:
    """One sequence of n_tokens from its beginning: what fused_qkvr_prep takes, and the two caches that it fills."""

    def __init__(self, attention_layer, n_tokens):
        random = torch.Generator().manual_seed(3)

        def draw(*shape):
            return torch.randn(shape, generator=random).to(DEVICE, torch.bfloat16)

        self.n_heads, self.n_kv_heads = attention_layer.num_heads, attention_layer.num_kv_heads
        self.qkvr = draw(n_tokens, (self.n_heads + 2 * self.n_kv_heads) * 128 + self.n_heads * 16)
        self.conv_weights = draw(self.n_kv_heads * 128, 4), draw(self.n_kv_heads * 128, 4)
        self.norm_weights = draw(128), draw(128)
        self.tau = None if attention_layer.is_local else 1 + torch.rand(n_tokens, generator=random).to(DEVICE)
        self.tokens = torch.arange(n_tokens, device=DEVICE)  # positions, and slots in both caches
        self.n_blocks = n_tokens // 16 + 2
        self.block_table = torch.arange(self.n_blocks, device=DEVICE, dtype=torch.int32)[None]

    def caches(self):
        """Empty: of the convolution, and of K and V, (blocks, slots, heads, 2 * head_dim)."""
        conv_cache = torch.zeros(self.n_blocks, self.n_kv_heads, 16, 256, dtype=torch.bfloat16, device=DEVICE)
        return conv_cache, torch.zeros(self.n_blocks, 16, self.n_kv_heads, 256, dtype=torch.bfloat16, device=DEVICE)


prompt_lengths = pytest.mark.parametrize("n_tokens", [5, pytest.param(200, marks=two_streams)])


@needs_vllm
@prompt_lengths
@pytest.mark.parametrize("is_local", [False, True])
def test_preparation_keeps_everything_but_the_projection(monkeypatch, is_local, n_tokens):
    """vLLM's fused_qkvr_prep beside the plugin's: q and caches bit for bit, and r, proj, tau that make its rel_logits."""
    pytest.importorskip("triton")
    monkeypatch.setenv("FLASHREL", "1")
    plugin.register()
    module, _ = vllm_files.load()
    self = layer(module, is_local)
    prompt = Prompt(self, n_tokens)
    zeros = torch.zeros_like(prompt.tokens)

    def run(prepare):
        conv_cache, kv = prompt.caches()
        q, bias = prepare(
            prompt.qkvr, *prompt.conv_weights, *prompt.norm_weights, self.rel_logits_proj.proj.data, 1e-6, prompt.n_heads,
            prompt.n_kv_heads, 128, 16, conv_cache, kv[..., :128], kv[..., 128:], prompt.tokens, prompt.block_table, zeros,
            prompt.tokens, zeros, prompt.tokens, 0, 128, 16, prompt.tau,
        )  # fmt: skip
        return q, bias, conv_cache, kv

    q, bias, conv_cache, kv = run(module.fused_qkvr_prep)
    q_vllm, rel_logits, conv_cache_vllm, kv_vllm = run(module.fused_qkvr_prep.original)
    assert torch.equal(q, q_vllm) and torch.equal(conv_cache, conv_cache_vllm) and torch.equal(kv, kv_vllm)
    assert kv.abs().sum() > 0
    ours = bias.rel.float() @ bias.rel_proj.float()
    ours = ours if prompt.tau is None else ours * bias.rel_scale[:, None, None]
    torch.testing.assert_close(ours, rel_logits.float(), atol=1e-2, rtol=2e-2)


class DrivenLayer:
    """vLLM's InklingAttention.forward over stand-ins for its projections and its convolution's owner."""

    def __init__(self, module, set_metadata, is_local, n_tokens):
        self.layer, self.module, self.set_metadata = layer(module, is_local), module, set_metadata
        prompt = self.prompt = Prompt(self.layer, n_tokens)
        conv_cache, self.kv = prompt.caches()
        stand_in = types.SimpleNamespace
        self.layer.qkvr, self.layer.wo_ud = lambda hidden: (prompt.qkvr * 1, None), lambda flat: (flat, None)
        self.layer.k_sconv, self.layer.v_sconv = (stand_in(weight=w.unsqueeze(1)) for w in prompt.conv_weights)
        self.layer.q_norm, self.layer.k_norm = (stand_in(weight=w, variance_epsilon=1e-6) for w in prompt.norm_weights)
        ranges = {module._K: (0, 128), module._V: (128, 256)}
        self.layer.conv_owner = stand_in(prefix="conv", kv_cache=conv_cache, block_size=16, stream_ranges=ranges)
        self.layer.kv_cache = self.kv.transpose(1, 2)
        self.batch_of(n_tokens)

    def batch_of(self, n_tokens):
        """The metadata of a pass over the first n_tokens."""
        prompt, conv = self.prompt, self.module.InklingSconvMetadata()
        conv.block_table, conv.slot_mapping = prompt.block_table, prompt.tokens
        conv.seq_idx = conv.query_start = torch.zeros_like(prompt.tokens)
        attention = types.SimpleNamespace(
            num_actual_tokens=n_tokens, max_query_len=n_tokens, block_table=prompt.block_table, slot_mapping=prompt.tokens,
            seq_lens=torch.tensor([n_tokens], dtype=torch.int32, device=DEVICE),
            query_start_loc=torch.tensor([0, n_tokens], dtype=torch.int32, device=DEVICE),
        )  # fmt: skip
        self.set_metadata({"conv": conv, "layer": attention})

    def forward(self):
        with torch.no_grad():
            return self.layer.forward(self.prompt.tokens, self.prompt.qkvr[:, :1], self.prompt.tau)


@needs_vllm
@prompt_lengths
@pytest.mark.parametrize("is_local", [False, True])
def test_forward_of_vllms_layer(monkeypatch, is_local, n_tokens):
    """InklingAttention.forward from qkvr to the input of its last projection: both levels give the same, and fill the caches."""
    pytest.importorskip("triton")
    results = {}
    for level in ("operator", "fused"):
        monkeypatch.setenv("FLASHREL", level)
        plugin.register()
        driven = DrivenLayer(*vllm_files.load(), is_local, n_tokens)
        results[level] = driven.forward(), driven.kv
        driven.set_metadata(None)  # vLLM's profiling run
        assert (driven.forward() == 0).all()
        forget_the_plugin()
    (out, kv), (fused_out, fused_kv) = results["operator"], results["fused"]
    assert torch.equal(kv, fused_kv) and kv.abs().sum() > 0
    n_heads, prompt = driven.layer.num_heads, driven.prompt
    assert out.shape == (n_tokens, n_heads * 128) and out.abs().sum() > 0
    # vLLM rounds rel_logits twice, by 2^-9 of the largest at most; a row moves by no more than twice that times the largest v.
    rel = prompt.qkvr[:, -n_heads * 16 :].unflatten(1, (n_heads, 16)).float()
    bias = rel @ driven.layer.rel_logits_proj.proj.float() * (1 if prompt.tau is None else prompt.tau[:, None, None])
    largest_v = kv[..., 128:].abs().max().float()
    error = (fused_out.float() - out.float()).abs().max()
    assert error < largest_v * (2**-7 * bias.abs().max() + 2**-7)


@needs_vllm
@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("level", ["operator", "fused"])
def test_a_graph_with_breaks(monkeypatch, level, is_local):
    """vLLM's own capture, which runs attention between two graphs on arguments that it keeps: replays with other data and another
    length are right, and nothing of ours holds the graph's memory.
    """
    monkeypatch.setenv("FLASHREL", level)
    plugin.register()
    module, set_metadata = vllm_files.load()
    breaks = sys.modules[vllm_files.BREAKS]
    if breaks.BreakableCUDAGraphCapture is None:
        pytest.skip("FLASHREL_VLLM has no vllm/compilation/breakable_cudagraph.py")
    driven = DrivenLayer(module, set_metadata, is_local, 5)
    with torch.cuda.stream(torch.cuda.Stream()):
        driven.forward()
        torch.cuda.synchronize()
        with breaks.BreakableCUDAGraphCapture() as capture:
            out = driven.forward()
        assert (capture.num_graphs, capture.num_eager_breaks) == (2, 1)
        (kept,) = (cell.cell_contents for cell in capture.segments[1].__closure__ if isinstance(cell.cell_contents, tuple))
        biases = [x for x in kept if isinstance(x, plugin.FusedBias)]
        assert len(biases) == (level == "fused")
        for bias in biases:
            assert bias.rel.untyped_storage().data_ptr() == bias.rel.data_ptr(), "a view of qkvr keeps all of it"
        for n_tokens in (5, 3):
            driven.prompt.qkvr.mul_(-1.25)
            driven.batch_of(n_tokens)
            out.fill_(7)
            capture.replay()
            torch.cuda.synchronize()
            assert torch.equal(out[:n_tokens], driven.forward()[:n_tokens])


def test_what_a_graph_with_breaks_keeps_is_weak(monkeypatch):
    """While vLLM captures one, r and tau are made weak by vLLM's own function; else they are as they came."""
    made = []
    graphs = types.SimpleNamespace(BreakableCUDAGraphCapture=types.SimpleNamespace(is_active=lambda: capturing))
    monkeypatch.setitem(sys.modules, vllm_files.BREAKS, graphs)
    utilities = types.SimpleNamespace(weak_ref_tensor=lambda x: made.append(x) or x.clone())
    monkeypatch.setitem(sys.modules, "vllm.utils.torch_utils", utilities)
    namespace = {}
    exec(f"def prepare({', '.join(plugin._PREP)}): return 'q', 'rel_logits'", namespace)
    preparation = plugin.Preparation(namespace["prepare"])
    qkvr, tau = torch.randn(3, 2 * 8 + 2 * 8 + 2 * 4), torch.ones(3)
    given = {**dict.fromkeys(plugin._PREP), "qkvr": qkvr, "rel_proj": torch.ones(4, 6), "log_scaling": tau}
    given.update(num_q_heads=2, num_kv_heads=1, head_dim=8, d_rel=4)
    for capturing in (False, True):
        _, bias = preparation(**given)
        assert torch.equal(bias.rel, qkvr[:, -8:].view(3, 2, 4)) and torch.equal(bias.rel_scale, tau)
        assert (bias.rel.untyped_storage().data_ptr() == qkvr.data_ptr()) == (not capturing)
        assert len(made) == (2 if capturing else 0)
