"""Both adapters by themselves, without torch: same bits as the NumPy way, and what they do not understand.

tvm-ffi's own tensors stand for torch's in the one, `Array` in the other: a class that shows its memory through DLPack functions
in C, as torch.Tensor does.
"""

import ctypes
import types

import numpy as np
import pytest
from oracle import Problem

import flashrel
from flashrel import _abi, _adapter
from flashrel._arrays import _DLTensor

DL_CPU, DL_FLOAT, DL_INT = 1, 2, 0


class Array:
    def __init__(self, array):
        sizes = ctypes.c_int64 * array.ndim
        self.kept = array, sizes(*array.shape), sizes(*(step // array.itemsize for step in array.strides))
        self.seen = _DLTensor(
            array.ctypes.data, DL_CPU, 0, array.ndim, DL_FLOAT if array.dtype.kind == "f" else DL_INT, 8 * array.itemsize, 1,
            *self.kept[1:], 0,
        )  # fmt: skip


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_DLTensor))
def show_tensor(address, out):
    out[0] = ctypes.cast(address, ctypes.py_object).value.seen
    return 0


class ExchangeAPI(ctypes.Structure):
    """DLPackExchangeAPI: version, the API before it, five functions, of which the adapter calls the fourth."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("before", ctypes.c_void_p)]
    _fields_ += [(name, ctypes.c_void_p) for name in ("allocate", "manage", "wrap", "show_tensor", "stream")]


def ctypes_adapter():
    make = ctypes.pythonapi.PyCapsule_New
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    Array.api = ExchangeAPI(1, 3, show_tensor=ctypes.cast(show_tensor, ctypes.c_void_p))
    Array.__dlpack_c_exchange_api__ = make(ctypes.addressof(Array.api), b"dlpack_exchange_api", None)
    return _adapter.by_ctypes(types.SimpleNamespace(Tensor=Array, nn=types.SimpleNamespace(Parameter=Array)))


@pytest.fixture(params=["tvm-ffi", "ctypes"])
def call(request):
    """call(*arguments): NumPy arrays are handed over as the adapter's tensors."""
    try:
        if request.param == "ctypes":
            wrap, adapter = Array, ctypes_adapter().call
        else:
            wrap, adapter = pytest.importorskip("tvm_ffi").from_dlpack, _adapter.by_tvm_ffi()
    except ImportError as error:
        pytest.skip(str(error))
    return lambda *values: adapter(tuple(wrap(x) if isinstance(x, np.ndarray) else x for x in values))


def arguments(arrays, out, lse, **changes):
    """In the adapters' order: 12 tensors or None, then the scalars, addresses, workspace and stream."""
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
    return workspace, list(values.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
@pytest.mark.parametrize("bias", ["none", "logits", "fused"])
def test_same_bits_as_numpy(call, dtype, bias):
    arrays = Problem([1, 5], [40, 9], dtype=np.dtype(dtype), bias=bias, rel_scale=bias == "fused").arrays()
    expected, expected_lse = flashrel.rel_attention(**arrays, return_lse=True)
    out, lse = np.zeros_like(arrays["q"]), np.zeros(arrays["q"].shape[:2], np.float32)
    workspace, values = arguments(arrays, out, lse)
    assert call(*values) == _abi.OK and workspace is not None
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


def test_strides_travel(call):
    arrays = Problem([1, 5], [40, 9]).arrays()
    expected = flashrel.rel_attention(**arrays)
    arrays["k_cache"] = np.ascontiguousarray(arrays["k_cache"].swapaxes(1, 2)).swapaxes(1, 2)
    out = np.zeros((6, 3, 2, 16), np.float32)[:, 1]
    workspace, values = arguments(arrays, out, None)
    assert call(*values) == _abi.OK and workspace is not None
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"q": np.zeros((6, 2, 16))},  # float64
        {"q": "text"},
        {"q": np.zeros((1, 1, 6, 2, 16), np.float32)},  # rank 5
        {"num_splits": 2**40},
        {"max_seqlen_q": 1.5},
        {"softmax_scale": None},
        {"device": 0},  # a CUDA device, while the arrays are on the host
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_it_does_not_understand_is_left_to_python(call, changes):
    arrays = Problem([1, 5], [40, 9]).arrays()
    out = np.full(arrays["q"].shape, 7, np.float32)
    workspace, values = arguments(arrays, out, None, **changes)
    assert call(*values) == _abi.UNREAD
    assert call(*values[:-1]) == _abi.UNREAD and workspace is not None
    assert (out == 7).all()


def test_errors_are_the_librarys(call):
    arrays = Problem([1, 5], [40, 9]).arrays()
    workspace, values = arguments(arrays, np.zeros_like(arrays["q"]), None, num_splits=-1)
    assert call(*values) == _abi.INVALID_ARGUMENT and workspace is not None
    with pytest.raises(ValueError, match="num_splits: got -1"):
        _abi.check(_abi.INVALID_ARGUMENT)
    _, values = arguments(arrays, np.zeros_like(arrays["q"]), None, num_splits=4, workspace_bytes=0)
    assert call(*values) == _abi.WORKSPACE


def test_the_struct_is_filled_field_by_field():
    """What the ctypes adapter reads, against the numbers that went in; no scalar is a default or equals another."""
    try:
        adapter = ctypes_adapter()
    except ImportError as error:
        pytest.skip(str(error))
    q, table = np.zeros((3, 2, 16), np.float32), np.zeros((1, 4), np.int32)
    scalars = (77, 123, 0.5, True, 1, 3, 4, 2, 5, True)
    args = _abi.AttentionArgs()
    assert adapter.read((Array(q), *(None,) * 2, Array(table), *(None,) * 8, -1, *scalars, 11, 12, 13, 0, 0, 0), args)
    fields = _abi.ATTENTION_ARGS.unpack(args)
    assert fields[:3] == (_abi.ATTENTION_ARGS.size, _abi.HOST, -1)
    assert fields[3:14] == (q.ctypes.data, 0, 3, 3, 2, 16, 0, 32, 16, 1, 0)
    assert fields[36:47] == (table.ctypes.data, 3, 2, 1, 4, 0, 0, 4, 1, 0, 0)
    assert fields[14:36] == 2 * _abi.ABSENT and fields[47:135] == 8 * _abi.ABSENT
    assert fields[135:] == (*scalars, 0, 11, 12, 13)
