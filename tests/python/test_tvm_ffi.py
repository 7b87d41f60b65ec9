"""The tvm-ffi adapter by itself, on DLPack views of NumPy arrays: same bits as ctypes, and what it does not understand."""

import numpy as np
import pytest
from oracle import Problem

import flashrel
from flashrel import _abi, _adapter

tvm_ffi = pytest.importorskip("tvm_ffi")

try:
    call = _adapter.by_tvm_ffi()
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)


def arguments(arrays, out, lse, **changes):
    """In the adapter's order: 12 tensors or None, then the scalars, addresses, workspace and stream."""
    plan = flashrel.plan(**arrays)
    n_bytes = plan["workspace"]["bytes"] + plan["schedule_memory"]["bytes"]
    workspace = np.empty(n_bytes + 256, np.uint8)
    address = workspace.ctypes.data + -workspace.ctypes.data % 256
    values = {
        **{name: arrays.get(name) for name in _abi.ATTENTION_TENSORS[:10]}, "out": out, "lse": lse, "device": -1,
        "max_seqlen_q": arrays["max_seqlen_q"], "max_seqlen_k": -1, "softmax_scale": arrays["softmax_scale"],
        "causal": arrays["causal"], "rel_edge": 0, "window_left": -1, "window_right": -1, "rel_zero": 0, "num_splits": 0,
        "deterministic": False, "backend": 0, "route": 0, "schedule": 0, "workspace": address, "workspace_bytes": n_bytes,
        "stream": 0,
    }  # fmt: skip
    values.update(changes)
    return workspace, [tvm_ffi.from_dlpack(x) if isinstance(x, np.ndarray) else x for x in values.values()]


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
@pytest.mark.parametrize("bias", ["none", "logits", "fused"])
def test_same_bits_as_ctypes(dtype, bias):
    arrays = Problem([1, 5], [40, 9], dtype=np.dtype(dtype), bias=bias, rel_scale=bias == "fused").arrays()
    expected, expected_lse = flashrel.rel_attention(**arrays, return_lse=True)
    out, lse = np.zeros_like(arrays["q"]), np.zeros(arrays["q"].shape[:2], np.float32)
    workspace, values = arguments(arrays, out, lse)
    assert call(values) == _abi.OK and workspace is not None
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


def test_strides_travel():
    arrays = Problem([1, 5], [40, 9]).arrays()
    expected = flashrel.rel_attention(**arrays)
    arrays["k_cache"] = np.ascontiguousarray(arrays["k_cache"].swapaxes(1, 2)).swapaxes(1, 2)
    out = np.zeros((6, 3, 2, 16), np.float32)[:, 1]
    _, values = arguments(arrays, out, None)
    assert call(values) == _abi.OK
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"q": np.zeros((6, 2, 16))},  # float64
        {"q": "text"},
        {"q": np.zeros((1, 1, 6, 2, 16), np.float32)},  # rank 5
        {"num_splits": 2**40},
        {"softmax_scale": None},
        {"device": 0},  # a CUDA device, while the arrays are on the host
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_it_does_not_understand_is_left_to_ctypes(changes):
    arrays = Problem([1, 5], [40, 9]).arrays()
    out = np.full(arrays["q"].shape, 7, np.float32)
    _, values = arguments(arrays, out, None, **changes)
    assert call(values) == _abi.UNREAD
    assert call(values[:-1]) == _abi.UNREAD
    assert (out == 7).all()


def test_errors_are_the_librarys():
    arrays = Problem([1, 5], [40, 9]).arrays()
    _, values = arguments(arrays, np.zeros_like(arrays["q"]), None, num_splits=-1)
    assert call(values) == _abi.INVALID_ARGUMENT
    with pytest.raises(ValueError, match="num_splits: got -1"):
        _abi.check(_abi.INVALID_ARGUMENT)
    _, values = arguments(arrays, np.zeros_like(arrays["q"]), None, num_splits=4, workspace_bytes=0)
    assert call(values) == _abi.WORKSPACE
