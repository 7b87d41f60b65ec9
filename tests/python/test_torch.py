"""torch tensors: results against the definition, errors, both adapters, opcheck, torch.compile; CUDA where there is one."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from oracle import BFLOAT16, Problem, assert_right

import flashrel
from flashrel import _abi, _adapter, _core
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


def adapter_of(way):
    """None: tensors are read in Python."""
    if way == "python":
        return None
    try:
        adapter = _adapter.by_ctypes(torch)
        return adapter if way == "ctypes" else adapter._replace(name=way, call=_adapter.by_tvm_ffi())
    except ImportError as error:
        pytest.skip(str(error))


WAYS = ["tvm-ffi", "ctypes", "python"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", ["none", "logits", "fused"])
def test_right(device, dtype, bias):
    arrays = problem(dtype, bias).arrays()
    out, lse = flashrel.rel_attention(**to_torch(arrays, device), return_lse=True)
    assert out.device.type == lse.device.type == device and out.dtype == dtype
    assert_right(to_numpy(out), arrays, to_numpy(lse))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
def test_lse_goes_where_the_caller_says(way, device, monkeypatch):
    """A column of something larger, with a new out and with a given one, eager and compiled."""
    monkeypatch.setattr(framework_of(torch.empty(0)), "adapter", adapter_of(way))
    tensors = to_torch(problem().arrays(), device)
    expected, expected_lse = flashrel.rel_attention(**tensors, return_lse=True)
    for run in (flashrel.rel_attention, torch.compile(flashrel.rel_attention, backend="aot_eager", fullgraph=True)):
        for given in (None, torch.empty_like(expected)):
            lse = torch.full((*expected_lse.shape, 2), 7.0, device=device)
            out, got = run(**tensors, out=given, lse=lse[..., 1])
            assert torch.equal(out, expected) and torch.equal(got, expected_lse) and torch.equal(lse[..., 1], got)
            assert (lse[..., 0] == 7).all()
    with pytest.raises(ValueError, match="lse: got dtype bfloat16, expected float32"):
        flashrel.rel_attention(**tensors, lse=expected_lse.bfloat16())


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
@pytest.mark.parametrize("way", WAYS[:2])
def test_every_way_into_the_library_agrees(way, device, monkeypatch):
    """Each adapter alone, the Python way out of reach (once the workspace is there): the same bits as in Python."""
    framework = framework_of(torch.empty(0))
    adapter = adapter_of(way)
    for bias in ("none", "logits", "fused"):
        arrays = problem(bias=bias).arrays()
        tensors = to_torch(arrays, device)
        monkeypatch.setattr(framework, "adapter", None)
        expected, expected_lse = flashrel.rel_attention(**tensors, num_splits=3, return_lse=True)
        assert_right(to_numpy(expected), arrays, to_numpy(expected_lse))
        with monkeypatch.context() as patch:
            patch.setattr(framework, "adapter", adapter)
            patch.setattr(_core, "prepare", None)
            out, lse = flashrel.rel_attention(**tensors, num_splits=3, return_lse=True)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


def call_arguments(tensors, device, out):
    """An adapter's arguments; the scalars are no defaults, so that none can be left out or take another's place."""
    scalars = _core.scalars_of(out, 77, 123, 0.5, False, (3, 4), 2, "clamp", 5, True)
    names = _abi.ATTENTION_TENSORS[:10]
    return (*(tensors.get(name) for name in names), out, None, device, *scalars, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_reading_in_c_gives_what_reading_in_python_gives(device):
    """The struct number by number, over strides, views, absent tensors, parameters and empty tensors."""
    adapter = adapter_of("ctypes")
    tensors = to_torch(problem().arrays(), device)
    q = tensors["q"]
    tensors["q"] = torch.stack([q, q], 1)[:, 1]
    tensors["k_cache"] = tensors["k_cache"].transpose(1, 2).contiguous().transpose(1, 2)
    tensors["rel_proj"] = torch.nn.Parameter(tensors["rel_proj"])
    tensors["cu_seqlens_q"] = torch.cat([tensors["cu_seqlens_q"], tensors["cu_seqlens_q"]])[:5]
    for given in (tensors, {**tensors, "q": q[:0], "rel": None, "rel_proj": None, "rel_scale": None}):
        index = q.get_device() if device == "cuda" else -1
        arguments = call_arguments(given, index, torch.empty_like(given["q"]))
        args = _abi.AttentionArgs()
        assert adapter.read(arguments, args)
        head = _abi.ATTENTION_ARGS.size, int(device == "cuda"), index
        in_python = *head, *_core._read_all(arguments[:12], index, 0), *arguments[13:23], 0, 0, 0, 0
        assert _abi.ATTENTION_ARGS.unpack(args) == in_python


@pytest.mark.parametrize("way", WAYS[:2])
def test_what_c_cannot_read_is_read_in_python(way):
    """Memory elsewhere, another dtype, an array of another framework, scalars that do not fit: not understood, nothing run."""
    adapter = adapter_of(way)
    arrays = problem().arrays()
    tensors = to_torch(arrays)
    good = call_arguments(tensors, -1, torch.empty_like(tensors["q"]))
    assert adapter.call(good) == _abi.WORKSPACE
    bad_tensors = (
        tensors["q"].double(),
        tensors["q"].to_sparse(),
        tensors["q"].to("meta"),
        "text",
        1,
        torch.zeros(1, 1, 1, 1, 1),
    )
    bad = [(x, *good[1:]) for x in bad_tensors]
    bad += [(*good[:i], x, *good[i + 1 :]) for i, x in ((12, 0), (12, 2**40), (13, 1.5), (15, "1"), (21, 2**40), (21, 2**80))]
    bad += [good[:-1], (*good, 0)]
    if way == "ctypes":  # tvm-ffi takes any DLPack array
        bad.append((arrays["q"], *good[1:]))
    for arguments in bad:
        assert adapter.call(arguments) == _abi.UNREAD
        assert not adapter.read(arguments, _abi.AttentionArgs())


def test_other_threads_run_while_the_library_computes(monkeypatch):
    """The ctypes adapter holds the interpreter's lock while it reads tensors, and not during the call."""
    monkeypatch.setattr(framework_of(torch.empty(0)), "adapter", adapter_of("ctypes"))
    n = 2048
    q, k, v = torch.randn(n, 8, 64), torch.randn(1, n, 2, 64), torch.randn(1, n, 2, 64)
    lengths = {"cache_seqlens": torch.tensor([n], dtype=torch.int32), "max_seqlen_q": n}
    lengths["block_table"], lengths["cu_seqlens_q"] = torch.zeros(1, 1).int(), torch.tensor([0, n], dtype=torch.int32)
    turns, done = [], threading.Event()

    def other():
        while not done.wait(1e-4):
            turns.append(time.perf_counter())

    flashrel.rel_attention(q, k, v, **lengths)  # the workspace is there: the next call is one call
    thread = threading.Thread(target=other)
    thread.start()
    start = time.perf_counter()
    flashrel.rel_attention(q, k, v, **lengths)
    end = time.perf_counter()
    done.set()
    thread.join()
    assert end - start > 0.002, "too short to see anything"
    assert sum(start < t < end for t in turns) > 3


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
@pytest.mark.parametrize("way", WAYS)
def test_layers_share_a_schedule(way, device, monkeypatch):
    """A step's schedule, remade in place for the next step: the bits of calls that make their own."""
    monkeypatch.setattr(framework_of(torch.empty(0)), "adapter", adapter_of(way))
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
