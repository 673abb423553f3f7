"""Stage 1: prompts in, a batch of responses out.

- `stage`: what the loop calls, dynamic sampling included.
- `sampler`: the sampler in this process and the `Sampler` protocol; `engine`: the same with CUDA
  graphs; `vllm`: vLLM.
- `tools`, `environments`: responses of several turns, in which tools answer the policy.

Imports data, models, batch, config, algorithms and errors. Actor and reward come in as
arguments, typed by the protocols in `stage`.
"""
