"""Every kernel, compiled for a GPU that need not be there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton comes with torch for GPUs, and with the dev extra")

SHARED_MEMORY = 99 * 1024
"""Bytes that one program may have on a card of 24 GiB (compute capability 8.6 or 8.9)."""

COMPILE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction
from telescope.models.fast import kernels

class Card:
    def get_current_target(self):
        return GPUTarget("cuda", 89, 32)
    def get_current_device(self):
        return 0
    def get_current_stream(self, device):
        return 0

found = {}
launch = JITFunction.run

def compile_only(self, *args, grid, warmup, **options):
    compiled = launch(self, *args, grid=grid, warmup=True, **options)
    assert compiled.asm["cubin"]
    found[self.__name__] = max(found.get(self.__name__, 0), compiled.metadata.shared)
    return compiled

triton.runtime.driver.set_active(Card())
JITFunction.run = compile_only
kernels.ThreadPoolExecutor = lambda threads: ThreadPoolExecutor(1)
heads, kv_heads, dim, dtype = json.loads(sys.argv[1])
kernels.compile_ahead(
    heads=heads, kv_heads=kv_heads, dim=dim, hidden=heads * dim, width=1000, vocabulary=5000,
    gelu=False, dtype=getattr(torch, dtype), device=torch.device("cpu"),
)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "dtype"),
    [
        (14, 2, 64, "bfloat16"),
        (28, 4, 128, "bfloat16"),
        (28, 4, 128, "float32"),
        (4, 1, 256, "float32"),
    ],
)
def test_every_kernel_compiles_for_a_card_of_24_gib(
    heads: int, kv_heads: int, dim: int, dtype: str, tmp_path: object
) -> None:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),  # an old result would prove nothing
    }
    given = json.dumps([heads, kv_heads, dim, dtype])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, given],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shared = json.loads(done.stdout.splitlines()[-1])
    assert len(shared) == 10
    assert max(shared.values()) <= SHARED_MEMORY, shared
