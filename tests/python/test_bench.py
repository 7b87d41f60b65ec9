"""python -m flashrel.bench on one small case: the report, the picture, and that a wrong peer is caught."""

import json
import os
import sys

import pytest

torch = pytest.importorskip("torch")

from flashrel import _bench_peers, bench  # noqa: E402

SMALL = bench.Case("small", 2, 64, 128, 4, 2, 64)


def test_report(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "CPU_CASES", [SMALL, bench.Case("local", 1, 64, 128, 4, 2, 64, 64)])
    path = tmp_path / "report.json"
    arguments = ["--device", "cpu", "--rounds", "2", "--json", str(path)]
    try:
        import matplotlib  # noqa: F401

        arguments += ["--figure", str(tmp_path / "report.png")]
    except ImportError:
        pass
    assert bench.main(arguments) == 0
    report = json.loads(path.read_text())
    assert [entry["case"]["name"] for entry in report["cases"]] == ["small", "local"]
    for entry in report["cases"]:
        assert {"flashrel fused", "flashrel logits", "SDPA, dense bias"} <= set(entry["results"]) and not entry["left_out"]
        assert all(r["median_us"] > 0 for r in entry["results"].values())
    assert "SDPA, dense bias" in capsys.readouterr().out
    if "--figure" in arguments:
        assert (tmp_path / "report.png").stat().st_size > 1000


def test_a_wrong_peer_is_caught(monkeypatch):
    def wrong(tensors):
        right = bench_peers(tensors)["flashrel fused"]
        return {"shifted": lambda: right().roll(1, 0)}

    bench_peers = bench.flashrel_peers
    monkeypatch.setattr(bench, "flashrel_peers", wrong)
    with torch.no_grad(), pytest.raises(AssertionError, match="small: shifted is wrong"):
        bench.run_case(SMALL, "cpu", torch.bfloat16, 1)


def test_vllms_triton_attention():
    """As flashrel.bench runs it: nothing of it stays among the imported modules, and it is right without the bias."""
    pytest.importorskip("triton")
    folder = os.environ.get("FLASHREL_VLLM", "")
    if not os.path.exists(f"{folder}/vllm/v1/attention/ops/triton_unified_attention.py"):
        pytest.skip("FLASHREL_VLLM names no unpacked vLLM wheel with its Triton attention")
    before = set(sys.modules)
    assert callable(_bench_peers.load_unified_attention(folder))
    assert not [name for name in set(sys.modules) - before if name.startswith("vllm")]
    if not torch.cuda.is_available():
        pytest.skip("imported, not run: Triton's interpreter does not take this kernel, and there is no GPU")
    for case in (bench.Case("prefill", 2, 64, 128, 4, 2, 64), bench.Case("decode", 1, 1, 384, 8, 1, 64, 256)):
        tensors = bench.Tensors(case, "cuda", torch.bfloat16)
        (name, run), *others = bench.triton_peers(tensors, folder).items()
        assert name == "vLLM Triton (no bias)" and not others
        rows = tensors.sampled_rows()
        got = torch.stack([run()[b * case.q_len + i] for b, i in rows]).float()
        torch.testing.assert_close(got, tensors.expected(rows, with_bias=False), atol=2e-2, rtol=2e-2)


def test_call_cost_counts_every_way():
    with torch.no_grad():
        costs = bench.call_cost("cpu", n_calls=320)
    assert {"C ABI", "ctypes", "torch operator"} <= set(costs)
    assert costs["ctypes"]["median_us"] > costs["C ABI"]["median_us"] > 0
