"""Several machines: the roles in worker processes of a Ray cluster, and what a recipe needs.

- `cluster`: connects to Ray; `worker`: one process; `group`: workers that act as one.
- `roles`: actor, critic, reference and reward model with the methods of those in process.
- `samplers`: sampling workers, and the way weights take to them.
- `plan`: memory, network and time of a recipe by arithmetic. It imports no torch.

Imports roles and everything below. `telescope.build` puts the roles together.
"""
