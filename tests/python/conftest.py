"""Where a test runs: `place` is NumPy's memory, torch on the CPU and torch on CUDA, as far as this machine has them."""

import os

# Small problems: torch's threads only wait for each other, for minutes where the machine is busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without a GPU vLLM's Triton kernels run in Triton's interpreter, which must be asked for before anything imports Triton.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
from oracle import BFLOAT16


class NumPyPlace:
    name = "numpy"

    def put(self, x):
        return x

    def get(self, x):
        return x


class TorchPlace:
    def __init__(self, device):
        self.torch = pytest.importorskip("torch")
        if device == "cuda" and not self.torch.cuda.is_available():
            pytest.skip("no CUDA device")
        self.device = self.name = device

    def put(self, x):
        if x.dtype == BFLOAT16:  # through its bits: torch.from_numpy does not know ml_dtypes
            return self.torch.from_numpy(x.view(np.int16)).view(self.torch.bfloat16).to(self.device)
        return self.torch.from_numpy(x).to(self.device)

    def get(self, x):
        if x.dtype == self.torch.bfloat16:
            return x.cpu().view(self.torch.int16).numpy().view(BFLOAT16)
        return x.cpu().numpy()


@pytest.fixture(params=["numpy", "torch-cpu", "torch-cuda"])
def place(request):
    return NumPyPlace() if request.param == "numpy" else TorchPlace(request.param.removeprefix("torch-"))
