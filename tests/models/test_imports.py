"""What a start imports, each in a process of its own."""

import subprocess
import sys

import pytest

UPDATE = """
import sys
from telescope.config import load_config
from telescope.trainer import Trainer

settings = {"dir": sys.argv[1], "device": "cpu", "steps": "9", "rollout.batch_size": "2", "rollout.max_response_tokens": "4"}
trainer = Trainer(load_config(None, list(settings.items())))

def stop(*_):
    print(*sys.modules)
    sys.exit()

trainer._after_step = stop
trainer.fit()
"""

FLEX = """
import torch
from telescope.models.load import load_policy
from telescope.config import ModelConfig
from telescope.tasks.arithmetic import ensure_model
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
load_policy(ModelConfig(path=str(ensure_model())), torch.device("cpu"))
ids = torch.randint(10, (2, 5))
torch.compile = lambda function, **_: function
model = {kind: AutoModelForCausalLM.from_pretrained(ensure_model(), attn_implementation=kind) for kind in ("sdpa", "flex_attention")}
with torch.no_grad():
    sdpa, flex = (model[kind](ids).logits for kind in model)
assert torch.allclose(sdpa, flex, atol=1e-4), (sdpa - flex).abs().max()
import torch._dynamo
from torch.nn.attention.flex_attention import BlockMask
from transformers import masking_utils
assert isinstance(masking_utils.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 8, 8, device="cpu"), masking_utils.BlockMask)
assert not isinstance(ids, masking_utils.BlockMask)
with torch.device("meta"):
    assert torch.nn.Embedding(3, 2).weight.shape == torch.ones(3, 2).shape
assert id(type(model["sdpa"]).can_record_outputs.fget) in torch._dynamo.trace_rules._allowed_callable_ids
"""


def run(code: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_update_imports_neither_compiler_nor_sliced_tensors(tmp_path) -> None:
    imported = set(run(UPDATE, tmp_path).split())
    heavy = {"sympy", "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.distributed.checkpoint"}
    assert "transformers.models.llama.modeling_llama" in imported
    assert imported & (heavy | {"accelerate", "peft", "ray", "scipy", "sklearn", "torchvision"}) == set()


def test_what_was_put_off_works_when_it_is_used() -> None:
    run(FLEX)


@pytest.mark.parametrize("first", ["torch._dynamo", "torch.nn.attention.flex_attention", "torch.distributed.tensor"])
def test_what_was_imported_before_is_taken_as_it_is(first: str) -> None:
    code = f"import {first}, sys; own = sys.modules[{first!r}]; import telescope.models.load; import {first}; assert {first} is own"
    run(f"{code}\nfrom transformers import masking_utils as m\nprint(type(m.BlockMask))")


def test_versions_of_packages_are_those_that_their_file_lists_give() -> None:
    run("""
from importlib import metadata
import telescope.models
from transformers.utils import import_utils

quick, full = import_utils.PACKAGE_DISTRIBUTION_MAPPING, metadata.packages_distributions()
assert type(quick) is not type(full)
for package in ("torch", "numpy", "tokenizers", "PIL", "yaml", "flash_attn", "nowhere"):
    found = []
    for import_utils.PACKAGE_DISTRIBUTION_MAPPING in (quick, full):
        found.append(import_utils._is_package_available(package, return_version=True))
    assert found[0] == found[1], found
""")
