"""vLLM's own Inkling attention files from an unpacked wheel, over stand-ins for the rest of vLLM.

`FLASHREL_VLLM` names a folder that holds vllm/models/inkling of a wheel. The layer (attention.py), the operator
(ops/fa4_rel_attention.py), the preparation (ops/qkvr_prep.py) and the capture of graphs with breaks are vLLM's files, unchanged;
config, platform, linear layers and metadata classes are stand-ins, since they need a whole engine.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types

BREAKS = "vllm.compilation.breakable_cudagraph"  # real where the folder has it
REAL = ("vllm.models.inkling.nvidia.attention", "vllm.models.inkling.nvidia.ops", BREAKS)
ROOT = os.environ.get("FLASHREL_VLLM", "")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name != "vllm" and not name.startswith("vllm."):
            return None
        file = os.path.join(ROOT, *name.split("."))
        package = os.path.isdir(file)
        file = os.path.join(file, "__init__.py") if package else file + ".py"
        if name.startswith(REAL) and (name != BREAKS or os.path.exists(file)):
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=[os.path.dirname(file)] if package else None
            )
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


class _StandIn(types.ModuleType):
    """Any class or function that a real file imports from here exists and does nothing, unless set below."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})
        setattr(self, name, made)
        return made


def load():
    """(attention module, set_metadata): imports the files afresh, through whatever import hooks are installed."""
    import triton
    import triton.language as tl

    unload()
    sys.meta_path.append(_Finder())

    def stand_in(name, **values):
        module = importlib.import_module(name)
        for key, value in values.items():
            setattr(module, key, value)

    context = types.SimpleNamespace(attn_metadata=None, cudagraph_runtime_mode="PIECEWISE")
    stand_in("vllm.triton_utils", tl=tl, triton=triton)
    stand_in("vllm.logger", init_logger=logging.getLogger)
    stand_in("vllm.config", CUDAGraphMode=types.SimpleNamespace(FULL="FULL", NONE="NONE"))
    stand_in("vllm.forward_context", get_forward_context=lambda: context, is_forward_context_available=lambda: True)
    stand_in("vllm.distributed", get_tensor_model_parallel_world_size=lambda: 1)
    stand_in(
        "vllm.utils.torch_utils",
        canonicalize_singleton_dim_strides=lambda x: x,
        aux_stream=_aux_stream,
        weak_ref_tensor=_weak_ref_tensor,
    )
    stand_in("vllm.platforms", current_platform=types.SimpleNamespace(get_device_capability=lambda: None))
    if not os.path.exists(os.path.join(ROOT, *BREAKS.split(".")) + ".py"):
        stand_in(BREAKS, eager_break_during_capture=lambda function: function, BreakableCUDAGraphCapture=None)
    attention = importlib.import_module("vllm.models.inkling.nvidia.attention")
    return attention, lambda metadata: setattr(context, "attn_metadata", metadata)


def unload():
    """Nothing of vLLM is left, and none can be found."""
    for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.")]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


class _Address:
    """A tensor's memory, which this does not keep, as __cuda_array_interface__."""

    def __init__(self, x):
        self.__cuda_array_interface__ = {
            "shape": tuple(x.shape), "strides": tuple(2 * step for step in x.stride()), "typestr": "<i2",
            "data": (x.data_ptr(), False), "version": 2,
        }  # fmt: skip


def _weak_ref_tensor(x):
    """vLLM's is C++. Here for the 16-bit and 32-bit tensors on CUDA that a layer hands over."""
    import torch

    if not isinstance(x, torch.Tensor) or not x.is_cuda:
        return x
    if x.element_size() == 4:
        return _weak_ref_tensor(x.view(torch.int16)).view(x.dtype)
    return torch.as_tensor(_Address(x.view(torch.int16)), device=x.device).view(x.dtype)


def _aux_stream():
    import torch

    return torch.cuda.Stream()
