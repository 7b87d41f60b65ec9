"""torch tensors: results against the definition, errors, both adapters, opcheck, torch.compile; CUDA where there is one."""

import os
import subprocess
import sys

import numpy as np
import pytest
from oracle import BFLOAT16, Problem, assert_right

import flashrel
from flashrel import _abi, _core
from flashrel._frameworks import framework_of

torch = pytest.importorskip("torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))]
DTYPES = {torch.bfloat16: BFLOAT16, torch.float16: np.dtype(np.float16)}


def to_torch(arrays, device="cpu"):
    """bfloat16 goes through its bits: torch.from_numpy does not know ml_dtypes."""

    def one(x):
        if not isinstance(x, np.ndarray):
            return x
        if x.dtype == BFLOAT16:
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(x).to(device)

    return {name: one(x) for name, x in arrays.items()}


def to_numpy(x):
    if x.dtype == torch.bfloat16:
        return x.cpu().view(torch.int16).numpy().view(BFLOAT16)
    return x.cpu().numpy()


def problem(dtype=torch.bfloat16, bias="fused", **shape):
    shape = {"n_q_heads": 4, "n_kv_heads": 2, "head_dim": 64, "page_size": 16, "rel_extent": 32, "d_rel": 16, **shape}
    return Problem([1, 3, 0, 20], [90, 33, 5, 20], dtype=DTYPES[dtype], bias=bias, rel_scale=bias == "fused", **shape)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", ["none", "logits", "fused"])
def test_right(device, dtype, bias):
    arrays = problem(dtype, bias).arrays()
    out, lse = flashrel.rel_attention(**to_torch(arrays, device), return_lse=True)
    assert out.device.type == lse.device.type == device and out.dtype == dtype
    assert_right(to_numpy(out), arrays, to_numpy(lse))


@pytest.mark.parametrize("device", DEVICES)
def test_out_is_returned_and_validate_reads(device):
    arrays = problem().arrays()
    tensors = to_torch(arrays, device)
    out = torch.empty_like(tensors["q"])
    assert flashrel.rel_attention(**tensors, out=out, validate=True) is out
    assert_right(to_numpy(out), arrays)
    tensors["cache_seqlens"] = tensors["cache_seqlens"] + 1000
    with pytest.raises(ValueError, match=r"cache_seqlens\[0\]: got 1090, expected at most max_pages \* page_size"):
        flashrel.rel_attention(**tensors, validate=True)


def test_merge_and_plan():
    arrays = problem(bias="none").arrays()
    tensors = to_torch(arrays)
    out, lse = flashrel.rel_attention(**tensors, return_lse=True)
    again = flashrel.merge(torch.stack([out, out]), torch.stack([lse, lse]))
    torch.testing.assert_close(again, out)
    assert flashrel.plan(**tensors)["backend"] == "cpu"


def test_gradients_are_refused_not_dropped():
    tensors = to_torch(problem().arrays())
    tensors["rel"].requires_grad_()
    with pytest.raises(ValueError, match="rel: requires a gradient"):
        flashrel.rel_attention(**tensors)
    with torch.no_grad():
        flashrel.rel_attention(**tensors)


def test_other_memory_is_refused():
    tensors = to_torch(problem().arrays())
    with pytest.raises(ValueError, match="block_table: lives on meta"):
        flashrel.rel_attention(**{**tensors, "block_table": tensors["block_table"].to("meta")})
    with pytest.raises(ValueError, match="q: got dtype float64"):
        flashrel.rel_attention(**{**tensors, "q": tensors["q"].double()})


def test_arrays_of_two_frameworks_may_meet_in_host_memory():
    arrays = problem().arrays()
    mixed = {**to_torch(arrays), "block_table": arrays["block_table"], "cu_seqlens_q": arrays["cu_seqlens_q"]}
    assert_right(to_numpy(flashrel.rel_attention(**mixed)), arrays)


# ---------------------------------------------------------------- the two adapters


def adapter_in_a_new_process(adapter):
    code = "import torch, flashrel; print(flashrel.info()['torch_adapter'])"
    environment = {**os.environ, "FLASHREL_ADAPTER": adapter}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_adapter_can_be_chosen():
    assert adapter_in_a_new_process("ctypes").stdout.strip() == "ctypes"
    assert "FLASHREL_ADAPTER: got 'cython'" in adapter_in_a_new_process("cython").stderr


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["tvm-ffi", "ctypes, tensors read in C", "ctypes, tensors read in Python"])
def test_every_way_into_the_library_agrees(way, device, monkeypatch):
    """Each way alone, the others out of reach (once the workspace is there): the same bits as in Python alone."""
    framework = framework_of(torch.empty(0))
    adapter, in_python = framework.adapter, framework.adapter._replace(call=None, read=None)
    if (adapter.call if way == "tvm-ffi" else adapter.read) is None and "Python" not in way:
        pytest.skip("apache-tvm-ffi, torch's DLPack functions or the adapter are not here")
    for bias in ("none", "logits", "fused"):
        arrays = problem(bias=bias).arrays()
        tensors = to_torch(arrays, device)
        monkeypatch.setattr(framework, "adapter", in_python)
        expected, expected_lse = flashrel.rel_attention(**tensors, num_splits=3, return_lse=True)
        assert_right(to_numpy(expected), arrays, to_numpy(expected_lse))
        with monkeypatch.context() as patch:
            if way == "tvm-ffi":
                patch.setattr(framework, "adapter", adapter)
                patch.setattr(_core, "prepare", None)
            elif way == "ctypes, tensors read in C":
                patch.setattr(framework, "adapter", adapter._replace(call=None))
                patch.setattr(_core, "_read_all", None)
            out, lse = flashrel.rel_attention(**tensors, num_splits=3, return_lse=True)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


@pytest.mark.parametrize("device", DEVICES)
def test_reading_in_c_gives_what_reading_in_python_gives(device):
    """The packed struct byte by byte, over strides, views, absent tensors, parameters and empty tensors."""
    framework = framework_of(torch.empty(0))
    if framework.adapter.read is None:
        pytest.skip("torch's DLPack functions or the adapter are not here")
    tensors = to_torch(problem().arrays(), device)
    q = tensors["q"]
    tensors["q"] = torch.stack([q, q], 1)[:, 1]
    tensors["k_cache"] = tensors["k_cache"].transpose(1, 2).contiguous().transpose(1, 2)
    tensors["rel_proj"] = torch.nn.Parameter(tensors["rel_proj"])
    tensors["cu_seqlens_q"] = torch.cat([tensors["cu_seqlens_q"], tensors["cu_seqlens_q"]])[:5]
    names = (*_abi.ATTENTION_TENSORS[:10],)
    for given in (tensors, {**tensors, "q": q[:0], "rel": None, "rel_proj": None, "rel_scale": None}):
        values = (*(given.get(name) for name in names), torch.empty_like(given["q"]), None)
        args = _abi.AttentionArgs()
        index = q.get_device() if device == "cuda" else -1
        assert framework.adapter.read(index, args, values)
        numbers = _core._read_all(values, index, 0)
        got = list(_abi.ATTENTION_ARGS.unpack(args)[3 : 3 + 12 * 11])
        assert got == numbers


def test_what_c_cannot_read_is_read_in_python():
    """Memory elsewhere, another dtype, an array of another framework: False, and never a wrong address."""
    read = framework_of(torch.empty(0)).adapter.read
    if read is None:
        pytest.skip("torch's DLPack functions or the adapter are not here")
    arrays = problem().arrays()
    tensors = to_torch(arrays)
    good = [*(tensors.get(name) for name in _abi.ATTENTION_TENSORS[:10]), torch.empty_like(tensors["q"]), None]
    assert read(-1, _abi.AttentionArgs(), tuple(good))
    for bad in (tensors["q"].double(), tensors["q"].to("meta"), arrays["block_table"], "text", torch.zeros(1, 1, 1, 1, 1)):
        assert not read(-1, _abi.AttentionArgs(), (bad, *good[1:]))
    assert not read(0, _abi.AttentionArgs(), tuple(good))


# ---------------------------------------------------------------- torch.library, torch.compile, graphs


def op_arguments(tensors):
    a = tensors
    positional = (
        a["q"], a["k_cache"], a["v_cache"], a["block_table"], a["cache_seqlens"], a["cu_seqlens_q"], a["max_seqlen_q"],
        None, a["softmax_scale"], a["causal"], *a["window_size"], a.get("rel_logits"), a.get("rel"), a.get("rel_proj"),
        a.get("rel_scale"),
    )  # fmt: skip
    return positional


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", ["none", "logits", "fused"])
def test_opcheck(device, bias):
    import flashrel._torch  # noqa: F401  registers the operators

    tensors = to_torch(problem(bias=bias).arrays(), device)
    torch.library.opcheck(torch.ops.flashrel.rel_attention.default, op_arguments(tensors))
    out = torch.empty_like(tensors["q"])
    torch.library.opcheck(torch.ops.flashrel.rel_attention_out.default, op_arguments(tensors), {"out": out, "lse": None})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph(device, dynamic):
    def layer(tensors, scale):
        out, lse = flashrel.rel_attention(**{**tensors, "q": tensors["q"] * scale}, return_lse=True)
        return out.float() + 1, lse

    tensors = to_torch(problem().arrays(), device)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager" if device == "cpu" else "inductor")
    with torch.no_grad():
        for got, expected in zip(compiled(tensors, 0.5), layer(tensors, 0.5)):
            torch.testing.assert_close(got, expected)


def test_compile_writes_into_out():
    def layer(tensors, out):
        flashrel.rel_attention(**tensors, out=out)
        return out * 2

    tensors = to_torch(problem().arrays())
    out, expected_out = torch.zeros_like(tensors["q"]), torch.zeros_like(tensors["q"])
    with torch.no_grad():
        got = torch.compile(layer, fullgraph=True, backend="aot_eager")(tensors, out)
        expected = layer(tensors, expected_out)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(out, expected_out)
    assert out.abs().sum() > 0


def test_compile_leaves_a_schedule_unused():
    """Made for other lengths, it would show."""
    tensors = to_torch(problem().arrays())
    other = flashrel.schedule(**{**tensors, "cache_seqlens": torch.zeros_like(tensors["cache_seqlens"])})
    expected = flashrel.rel_attention(**tensors)

    def layer(q):
        return flashrel.rel_attention(**{**tensors, "q": q}, schedule=other)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(tensors["q"]), expected)
        assert not torch.equal(flashrel.rel_attention(**tensors, schedule=other), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("bias", ["logits", "fused"])
def test_cuda_graph_replays_with_other_lengths_tables_and_data(bias):
    """Captured with one batch, replayed with another of the same bounds; a NaN-filled pool must not matter."""
    first, second = (to_torch(p.arrays(), "cuda") for p in (problem(bias=bias), problem(bias=bias, seed=7)))
    second["cache_seqlens"] = torch.tensor([70, 40, 0, 20], dtype=torch.int32, device="cuda")
    second["block_table"] = first["block_table"].clone()  # every page of the first batch is filled in the second one too
    second = {**second, "k_cache": torch.nan_to_num(second["k_cache"]), "v_cache": torch.nan_to_num(second["v_cache"])}
    expected = flashrel.rel_attention(**second, num_splits=3)
    out = torch.full_like(first["q"], float("nan"))
    warmup = torch.cuda.Stream()
    with torch.cuda.stream(warmup):
        flashrel.rel_attention(**first, num_splits=3)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashrel.rel_attention(**first, num_splits=3, out=out)
    for name, x in second.items():
        if torch.is_tensor(x):
            first[name].copy_(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_current_stream_is_taken():
    """Work queued on a side stream before the call is seen by it: q is written there after a long sleep."""
    tensors = to_torch(problem().arrays(), "cuda")
    expected = flashrel.rel_attention(**tensors)
    q = torch.zeros_like(tensors["q"])
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        q.copy_(tensors["q"])
        out = flashrel.rel_attention(**{**tensors, "q": q})
    side.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["tvm-ffi", "ctypes"])
def test_layers_share_a_schedule(way, device, monkeypatch):
    """A step's schedule, remade in place for the next step: the bits of calls that make their own."""
    framework = framework_of(torch.empty(0))
    if way == "tvm-ffi" and framework.adapter.call is None:
        pytest.skip("apache-tvm-ffi or the adapter is not here")
    if way == "ctypes":
        monkeypatch.setattr(framework, "adapter", framework.adapter._replace(call=None))
    tensors = to_torch(problem().arrays(), device)
    step = None
    for lengths in ([90, 33, 5, 20], [17, 3, 0, 20], [90, 1, 1, 19]):
        tensors["cache_seqlens"] = torch.tensor(lengths, dtype=torch.int32, device=device)
        step = flashrel.schedule(**tensors, num_splits=3, into=step)
        for scale in (1, 2):
            q = tensors["q"] * scale
            expected = flashrel.rel_attention(**{**tensors, "q": q}, num_splits=3)
            assert torch.equal(flashrel.rel_attention(**{**tensors, "q": q}, num_splits=3, schedule=step), expected)
    arrays = problem().arrays()
    if device == "cuda":
        with pytest.raises(ValueError, match="schedule: lives on cuda:0, expected cpu like q"):
            flashrel.rel_attention(**arrays, schedule=step)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_schedule_is_remade_by_every_replay():
    tensors = to_torch(problem().arrays(), "cuda")
    lengths = tensors["cache_seqlens"]
    out = torch.empty_like(tensors["q"])
    flashrel.rel_attention(**tensors, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step = flashrel.schedule(**tensors)
        flashrel.rel_attention(**tensors, out=out, schedule=step)
    for other in ([70, 20, 0, 20], [90, 3, 5, 20]):
        lengths.copy_(torch.tensor(other, dtype=torch.int32))
        out.fill_(7)
        graph.replay()
        assert torch.equal(out, flashrel.rel_attention(**tensors))
