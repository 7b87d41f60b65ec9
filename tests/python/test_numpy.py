"""rel_attention and merge on NumPy arrays against the float64 definition: random problems, edges, bad input."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import BFLOAT16, Problem, assert_right, attention

import flashrel

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]


@st.composite
def problems(draw):
    n_seqs = draw(st.integers(1, 3))
    n_kv_heads, group = draw(st.sampled_from([(1, 1), (1, 3), (1, 4), (2, 2), (2, 8)]))
    left, right = draw(st.sampled_from([(-1, -1), (0, 0), (5, 0), (7, -1), (3, 2), (-1, 4)]))
    extent = draw(st.sampled_from([1, 2, 7, 16, 40]))
    return Problem(
        q_lens=[draw(st.integers(0, 9)) for _ in range(n_seqs)],
        kv_lens=[draw(st.one_of(st.integers(0, 12), st.integers(13, 70))) for _ in range(n_seqs)],
        n_q_heads=n_kv_heads * group,
        n_kv_heads=n_kv_heads,
        head_dim=draw(st.sampled_from([8, 16, 40, 64])),
        page_size=draw(st.sampled_from([1, 3, 8, 16])),
        dtype=draw(st.sampled_from(DTYPES)),
        bias=draw(st.sampled_from(["none", "logits", "fused"])),
        rel_extent=extent,
        d_rel=draw(st.sampled_from([1, 4, 16])),
        rel_scale=draw(st.booleans()),
        causal=draw(st.booleans()),
        window_size=(left, right),
        rel_zero=draw(st.sampled_from([0, 1, extent // 2])),
        rel_edge=draw(st.sampled_from(["zero", "clamp"])),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([0, 1, 3, 32]), st.booleans())
def test_random_problems(problem, num_splits, deterministic):
    arrays = problem.arrays()
    out, lse = flashrel.rel_attention(
        **arrays, num_splits=num_splits, deterministic=deterministic, return_lse=True, validate=True
    )
    assert_right(out, arrays, lse)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", ["none", "logits", "fused"])
def test_long_cache_is_split_and_merged(dtype, bias):
    arrays = Problem(
        [1, 3], [700, 333], n_q_heads=4, n_kv_heads=2, head_dim=32, page_size=16, dtype=dtype, bias=bias, rel_extent=64
    ).arrays()
    results = [flashrel.rel_attention(**arrays, num_splits=n) for n in (1, 4)]
    assert_right(results[0], arrays)
    assert_right(results[1], arrays)


def test_logits_in_float32_beside_bfloat16_and_broadcast_table():
    problem = Problem([2, 4], [9, 20], dtype=BFLOAT16, bias="logits", rel_extent=12)
    arrays = problem.arrays()
    one_row = np.random.default_rng(1).standard_normal((1, 2, 12)).astype(np.float32)
    arrays["rel_logits"] = np.broadcast_to(one_row, (6, 2, 12))
    assert arrays["rel_logits"].strides[0] == 0
    assert_right(flashrel.rel_attention(**arrays), arrays)


def test_uint16_is_bfloat16_bits():
    arrays = Problem([3], [11], dtype=BFLOAT16).arrays()
    as_bits = {k: v.view(np.uint16) if getattr(v, "dtype", None) == BFLOAT16 else v for k, v in arrays.items()}
    out = flashrel.rel_attention(**as_bits)
    assert out.dtype == np.uint16
    np.testing.assert_array_equal(out, flashrel.rel_attention(**arrays).view(np.uint16))


def test_default_scale_is_one_over_head_dim():
    arrays = Problem([3], [11], head_dim=16, softmax_scale=1 / 16).arrays()
    expected = flashrel.rel_attention(**arrays)
    del arrays["softmax_scale"]
    np.testing.assert_array_equal(flashrel.rel_attention(**arrays), expected)


def test_strides_are_respected_and_out_is_returned():
    arrays = Problem([3, 2], [11, 6], n_q_heads=4, n_kv_heads=2).arrays()
    expected = flashrel.rel_attention(**arrays)
    kv = np.concatenate([arrays["k_cache"], arrays["v_cache"]], axis=-1)  # halves of one row, as vLLM keeps them
    kv = np.ascontiguousarray(kv.swapaxes(1, 2)).swapaxes(1, 2)  # and head-major
    wide_q = np.zeros((5, 4, 40), np.float32)
    wide_q[..., 8:24] = arrays["q"]
    wide_out = np.full((5, 2, 4, 16), 7, np.float32)
    out = wide_out[:, 1]
    strided = {**arrays, "q": wide_q[..., 8:24], "k_cache": kv[..., :16], "v_cache": kv[..., 16:]}
    assert flashrel.rel_attention(**strided, out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert (wide_out[:, 0] == 7).all()


def test_rows_past_the_last_sequence_stay_untouched():
    arrays = Problem([3, 2], [11, 6]).arrays()
    arrays["cu_seqlens_q"] = np.array([0, 2, 3], np.int32)
    out = np.full(arrays["q"].shape, 7, np.float32)
    flashrel.rel_attention(**arrays, out=out)
    assert (out[3:] == 7).all()
    assert not (out[:3] == 7).any()


def test_empty_batches():
    arrays = Problem([], []).arrays()
    out, lse = flashrel.rel_attention(**arrays, return_lse=True)
    assert out.shape == (0, 2, 16) and lse.shape == (0, 2)
    arrays = Problem([2, 0], [0, 5]).arrays()
    out, lse = flashrel.rel_attention(**arrays, return_lse=True)
    assert (out == 0).all() and (lse == -np.inf).all()


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 5), st.integers(0, 4), st.integers(1, 3), st.sampled_from([1, 7, 16]), st.sampled_from(DTYPES),
    st.integers(0, 99),
)  # fmt: skip
def test_merge(n_parts, n_rows, n_heads, head_dim, dtype, seed):
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((n_parts, n_rows, n_heads, head_dim)).astype(dtype)
    lse = rng.normal(0, 3, (n_parts, n_rows, n_heads)).astype(np.float32)
    empty = rng.random(lse.shape) < 0.3
    lse[empty] = -np.inf
    parts[empty] = np.nan  # a part without keys may hold anything
    out, total = flashrel.merge(parts, lse, return_lse=True)
    with np.errstate(divide="ignore"):
        weight = np.exp(lse.astype(np.float64))
        expected_lse = np.log(weight.sum(0))
    safe = np.where(empty[..., None], 0, parts.astype(np.float64))
    sums = np.where(weight.sum(0) > 0, weight.sum(0), 1)[..., None]
    expected = (weight[..., None] * safe).sum(0) / sums
    tolerance = {4: 1e-5, 2: 2e-2}[np.dtype(dtype).itemsize]
    np.testing.assert_allclose(out.astype(np.float64), expected, atol=tolerance)
    np.testing.assert_allclose(total, expected_lse, atol=1e-4)


def test_merge_of_two_halves_is_the_whole():
    arrays = Problem([2], [40], dtype=np.dtype(np.float32), bias="none", causal=False, page_size=20).arrays()
    whole, whole_lse = flashrel.rel_attention(**arrays, return_lse=True)
    parts = []
    for page in (0, 1):
        half = {
            **arrays,
            "block_table": arrays["block_table"][:, page : page + 1],
            "cache_seqlens": np.array([20], np.int32),
        }
        parts.append(flashrel.rel_attention(**half, return_lse=True))
    out, lse = flashrel.merge(np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts]), return_lse=True)
    np.testing.assert_allclose(out, whole, atol=1e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=1e-5)


def test_plan_and_info():
    arrays = Problem([3], [11], bias="fused").arrays()
    plan = flashrel.plan(**arrays, num_splits=1)
    assert plan["backend"] == "cpu" and plan["bias"] == "fused" and plan["route"] == "fused"
    entries = plan["workspace"]["entries"]
    assert plan["workspace"]["bytes"] >= sum(e["bytes"] for e in entries)
    info = flashrel.info()
    assert info["version"] == flashrel.__version__
    assert any(b["name"] == "cpu" and b["on"] for b in info["backends"])


# ---------------------------------------------------------------- bad input: the library's sentence, nothing written

BAD = {
    "group": ({"n_q_heads": 3, "n_kv_heads": 2}, {}, r"n_q_heads of q: got 3, expected a multiple of n_kv_heads = 2"),
    "splits": ({}, {"num_splits": -1}, "num_splits: got -1"),
    "splits_type": ({}, {"num_splits": 2**40}, "num_splits: got 1099511627776, expected a 32-bit integer"),
    "scale": ({}, {"softmax_scale": float("nan")}, "softmax_scale: got"),
    "scale_type": ({}, {"softmax_scale": "1"}, "softmax_scale: got '1', expected a number"),
    "edge": ({}, {"rel_edge": "wrap"}, "rel_edge: got 'wrap', expected 'zero' or 'clamp'"),
    "window": ({}, {"window_size": 5}, r"window_size: got 5, expected \(left, right\)"),
    "window_low": ({}, {"window_size": (-2, 0)}, "window_left: got -2"),
    "backend": ({}, {"backend": "sm90"}, "sm90"),
    "route": ({}, {"route": "sheared"}, "route"),
    "table_dtype": ({}, {"block_table": np.zeros((1, 3), np.int64)}, "block_table: got dtype int64"),
    "lengths_shape": ({}, {"cache_seqlens": np.zeros(2, np.int32)}, r"cache_seqlens: got shape \(2\)"),
    "list": ({}, {"cache_seqlens": [11]}, "cache_seqlens: got builtins.list, expected an array"),
    "both": ({}, {"rel_logits": np.zeros((3, 2, 8), np.float32)}, "rel_logits: given together with rel"),
    "rank": ({}, {"rel_proj": np.zeros((1, 1, 1, 4, 8), np.float32)}, "rel_proj: got rank 5, expected at most 4"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    shape, arguments, sentence = BAD[name]
    arrays = Problem([3], [11], **shape).arrays()
    out = np.full(arrays["q"].shape, 7, np.float32)
    with pytest.raises(ValueError, match=sentence):
        flashrel.rel_attention(**{**arrays, **arguments}, out=out)
    assert (out == 7).all()


def test_validate_reads_lengths_and_pages():
    arrays = Problem([3], [11]).arrays()
    wild = {**arrays, "block_table": np.where(arrays["block_table"] >= 0, 99, -1).astype(np.int32)}
    with pytest.raises(ValueError, match=r"block_table\[0\]\[0\]: got 99, expected a page number from 0"):
        flashrel.rel_attention(**wild, validate=True)
    long = {**arrays, "cache_seqlens": np.array([400], np.int32)}
    with pytest.raises(ValueError, match=r"cache_seqlens\[0\]: got 400, expected at most"):
        flashrel.rel_attention(**long, validate=True)
    with pytest.raises(ValueError, match=r"q_len\[0\]: got 3, expected at most max_seqlen_q = 2"):
        flashrel.plan(**{**arrays, "max_seqlen_q": 2}, validate=True)


def test_out_may_not_be_an_input_nor_read_only():
    arrays = Problem([3], [11]).arrays()
    with pytest.raises(ValueError, match="out: starts at the same address as q"):
        flashrel.rel_attention(**arrays, out=arrays["q"])
    out = np.zeros(arrays["q"].shape, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: got a read-only array"):
        flashrel.rel_attention(**arrays, out=out)


def test_signature():
    """The interface that users build on: names, order and defaults; what was added since stands beside it by name."""
    promised = inspect.signature(
        lambda q, k_cache, v_cache, *, block_table, cache_seqlens, cu_seqlens_q, max_seqlen_q, max_seqlen_k=None,
        softmax_scale=None, causal=True, window_size=(-1, -1), rel_logits=None, rel=None, rel_proj=None, rel_scale=None,
        rel_zero=0, rel_edge="zero", num_splits=0, deterministic=False, backend="auto", out=None, return_lse=False: None
    ).parameters  # fmt: skip
    found = inspect.signature(flashrel.rel_attention).parameters
    assert [name for name in found if name in promised] == list(promised)
    for name, parameter in promised.items():
        assert found[name].default == parameter.default and found[name].kind is parameter.kind
    assert set(found) - set(promised) == {"route", "lse", "validate", "stream", "schedule"}


@pytest.mark.parametrize("function", [flashrel.plan, flashrel.schedule, flashrel.rel_attention], ids=lambda f: f.__name__)
def test_names_of_arguments_are_python_s_to_check(function):
    arrays = Problem([3], [11]).arrays()
    with pytest.raises(TypeError, match="unexpected keyword argument 'rel_bias'"):
        function(**arrays, rel_bias=None)
    arrays.pop("block_table")
    with pytest.raises(TypeError, match="missing a? ?.*required .*'?block_table'?"):
        function(**arrays)


def test_lse_goes_where_the_caller_says():
    arrays = Problem([3, 1], [11, 5]).arrays()
    expected, expected_lse = flashrel.rel_attention(**arrays, return_lse=True)
    lse = np.full((*expected_lse.shape, 2), 7, np.float32)
    out, got = flashrel.rel_attention(**arrays, lse=lse[..., 1])
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, np.stack([np.full_like(expected_lse, 7), expected_lse], -1))
    assert got.base is lse
    lse.flags.writeable = False
    with pytest.raises(ValueError, match="lse: got a read-only array"):
        flashrel.rel_attention(**arrays, lse=lse[..., 1])


def test_threads_share_nothing():
    """Calls from several threads at once: each has its own workspace and its own error sentence."""
    from concurrent.futures import ThreadPoolExecutor

    arrays = [Problem([1], [300 + 10 * i], head_dim=32, seed=i).arrays() for i in range(4)]
    alone = [flashrel.rel_attention(**a, num_splits=4) for a in arrays]

    def work(i):
        if i % 5 == 4:
            with pytest.raises(ValueError, match=f"num_splits: got -{i}"):
                flashrel.rel_attention(**arrays[i % 4], num_splits=-i)
        return flashrel.rel_attention(**arrays[i % 4], num_splits=4)

    with ThreadPoolExecutor(4) as pool:
        for i, out in enumerate(pool.map(work, range(40))):
            np.testing.assert_array_equal(out, alone[i % 4])


def test_oracle_knows_a_softmax():
    """The oracle itself, on a case small enough to do by hand: two keys, one head, bias ln 3 on the newer."""
    arrays = Problem([1], [2], n_q_heads=1, head_dim=8, bias="logits", rel_extent=1).arrays()
    arrays["q"][:] = 0
    arrays["rel_logits"][:] = np.log(3)
    out, lse = attention(**arrays)
    page = arrays["block_table"][0, 0]
    v = arrays["v_cache"][page, :2, 0].astype(np.float64)
    np.testing.assert_allclose(out[0, 0], 0.25 * v[0] + 0.75 * v[1], rtol=1e-6)
    np.testing.assert_allclose(lse[0, 0], np.log(4), rtol=1e-6)


# ---------------------------------------------------------------- shared schedules


def test_layers_share_a_schedule():
    """Two layers of one step, other data and other caches of the same layout: the bits of calls that make their own."""
    first, second = (Problem([1, 5, 30], [40, 9, 200], seed=seed).arrays() for seed in (1, 2))
    second = {**first, **{name: second[name] for name in ("q", "k_cache", "v_cache", "rel", "rel_proj")}}
    second["k_cache"], second["v_cache"] = (np.nan_to_num(second[name]) for name in ("k_cache", "v_cache"))
    second["block_table"] = first["block_table"]
    step = flashrel.schedule(**first, num_splits=3)
    for arrays in (first, second):
        expected = flashrel.rel_attention(**arrays, num_splits=3)
        np.testing.assert_array_equal(flashrel.rel_attention(**arrays, num_splits=3, schedule=step), expected)


def test_a_schedule_says_what_runs():
    """Made of other lengths with the same plan, it answers for those lengths: the call reads it, it makes none of its own."""
    arrays = Problem([1], [64]).arrays()
    shorter = {**arrays, "cache_seqlens": np.array([0], np.int32)}
    step = flashrel.schedule(**shorter, max_seqlen_k=64)
    out = np.full_like(arrays["q"], 7)
    flashrel.rel_attention(**arrays, max_seqlen_k=64, out=out, schedule=step)
    expected = flashrel.rel_attention(**arrays, max_seqlen_k=64)
    assert not np.array_equal(out, expected)
    again = flashrel.schedule(**arrays, max_seqlen_k=64, into=step)
    assert again is step
    np.testing.assert_array_equal(flashrel.rel_attention(**arrays, max_seqlen_k=64, out=out, schedule=step), expected)


def test_a_schedule_of_another_plan_is_refused():
    arrays = Problem([1, 5], [40, 9]).arrays()
    step = flashrel.schedule(**arrays)
    with pytest.raises(ValueError, match="schedule: got one that flashrel_schedule did not make for these"):
        flashrel.rel_attention(**{**arrays, "max_seqlen_q": 6}, schedule=step)
    with pytest.raises(ValueError, match=r"cache_seqlens"):
        flashrel.schedule(**{**arrays, "cache_seqlens": np.array([40, 9999], np.int32)})
