r"""A pytest plugin: vLLM's own tests of its Inkling operator, with FlashRel's names in the operator's module.

    FLASHREL_VLLM=UNPACKED_WHEEL PYTHONPATH=tests/python python3 -m pytest -p vllm_drop_in \
        SOURCES/tests/models/inkling/test_fa4_rel_attention.py

vLLM's attention.py and fa4_rel_attention.py are imported from the wheel (see vllm_files.py); then the operator and its two
host functions are replaced, as a user of `flashrel.inkling` would.
"""

import collections
import functools
import importlib

import torch
import vllm_files

from flashrel import inkling


class Platform:
    """vLLM's current_platform as far as these tests ask and patch it."""

    def is_cuda(self):
        return torch.cuda.is_available()

    def get_device_capability(self):
        return Capability(*torch.cuda.get_device_capability()) if self.is_cuda() else None


Capability = collections.namedtuple("Capability", "major minor")
platform = Platform()


def pytest_configure():
    vllm_files.load()
    importlib.import_module("vllm.platforms").current_platform = platform
    importlib.import_module("vllm.platforms.interface").DeviceCapability = Capability
    module = importlib.import_module("vllm.models.inkling.nvidia.ops.fa4_rel_attention")
    module.current_platform = platform
    replaced = {
        "_INKLING_FA4_REL_ATTENTION_KERNEL": inkling.inkling_fa4_rel_attention,
        "bucket_max_seqlen_q": inkling.bucket_max_seqlen_q,
        "inkling_fa4_num_splits": lambda **keywords: inkling.inkling_fa4_num_splits(
            **keywords, capability_major=platform.get_device_capability().major if platform.get_device_capability() else 0
        ),
        "_use_sheared_bias": functools.cache(lambda: inkling.use_sheared_bias(platform.get_device_capability())),
    }
    for name, ours in replaced.items():
        if not hasattr(module, name):
            raise RuntimeError(f"vLLM's operator module has no {name}: this plugin does not know its version")
        setattr(module, name, ours)
