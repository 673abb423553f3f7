"""telescope plan: what a recipe takes on some number of GPUs, by arithmetic. Imports no torch.

- `shapes`: sizes of models; `job`: a recipe on its GPUs, and which GPU does what.
- `sampling`, `memory`, `times`: cache and decoding, bytes per GPU, network and seconds.
- `table`: all of it as text; `fit`: `--suggest`; `command`: the command's options.

One GPU is the backend `local`. More are the backend `ray`: models are sharded (FSDP2) over the GPUs
that train, or over `ray.fsdp_size` of them; others only sample, train the critic, or score. Sizes
of weights, optimizer state, gradients and cache follow from the model's shape. Activations, FSDP's
buffers and all times are estimates; docs/scale.md has their errors.
"""
