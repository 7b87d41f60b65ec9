"""Arrays that only speak DLPack, JAX arrays on the CPU, and CuPy arrays where there is a GPU."""

import numpy as np
import pytest
from oracle import BFLOAT16, Problem, assert_right

import flashrel


class OnlyDLPack:
    """A NumPy array that shows nothing but the protocol."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_dlpack_arrays_beside_numpy(dtype):
    arrays = Problem([1, 5], [40, 9], dtype=np.dtype(dtype)).arrays()
    wrapped = {
        name: OnlyDLPack(x) if isinstance(x, np.ndarray) and name != "q" else x for name, x in arrays.items()
    }  # fmt: skip
    assert_right(flashrel.rel_attention(**wrapped), arrays)


def test_dlpack_strides_and_dtypes():
    arrays = Problem([1, 5], [40, 9]).arrays()
    expected = flashrel.rel_attention(**arrays)
    cache = np.ascontiguousarray(arrays["k_cache"].swapaxes(1, 2)).swapaxes(1, 2)
    np.testing.assert_array_equal(flashrel.rel_attention(**{**arrays, "k_cache": OnlyDLPack(cache)}), expected)
    with pytest.raises(ValueError, match="k_cache: got dtype DLPack code 2, 64 bits"):
        flashrel.rel_attention(**{**arrays, "k_cache": OnlyDLPack(cache.astype(np.float64))})


def test_q_must_come_from_a_framework_that_can_make_an_output():
    arrays = Problem([1], [4]).arrays()
    with pytest.raises(ValueError, match="q: got test_dlpack.OnlyDLPack, expected a NumPy, torch, CuPy or JAX array"):
        flashrel.rel_attention(**{**arrays, "q": OnlyDLPack(arrays["q"])})


def jax_device(kind):
    jax = pytest.importorskip("jax")
    try:
        return jax, jax.devices(kind)[0]
    except RuntimeError:
        pytest.skip(f"JAX has no {kind}")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_jax(kind, dtype):
    jax, device = jax_device(kind)
    arrays = Problem([1, 5], [300, 9], dtype=dtype, head_dim=64, page_size=16, n_q_heads=4, n_kv_heads=2).arrays()
    there = {name: jax.device_put(x, device) if isinstance(x, np.ndarray) else x for name, x in arrays.items()}
    out, lse = flashrel.rel_attention(**there, num_splits=3, return_lse=True)
    assert isinstance(out, jax.Array) and out.dtype == dtype and out.device == device
    assert_right(np.asarray(out), arrays, np.asarray(lse))
    assert np.array_equal(out, flashrel.rel_attention(**there, num_splits=3))
    step = flashrel.schedule(**there, num_splits=3)
    assert np.array_equal(out, flashrel.rel_attention(**there, num_splits=3, schedule=step))
    for name, array in (("out", out), ("lse", lse)):
        with pytest.raises(ValueError, match=f"{name}: got a JAX array"):
            flashrel.rel_attention(**there, **{name: array})


def test_cupy():
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    arrays = Problem(
        [1, 5], [300, 9], dtype=np.dtype(np.float16), head_dim=64, page_size=16, n_q_heads=4, n_kv_heads=2
    ).arrays()  # fmt: skip
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        there = {name: cupy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in arrays.items()}
        out, lse = flashrel.rel_attention(**there, num_splits=3, return_lse=True, validate=True)
        assert isinstance(out, cupy.ndarray)
        assert_right(cupy.asnumpy(out), arrays, cupy.asnumpy(lse))
