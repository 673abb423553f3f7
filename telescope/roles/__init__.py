"""Actor, critic, reference and reward: each takes a batch and returns it with more columns.

- `protocols`: the roles as the trainer sees them, in process or on Ray.
- `actor`, `critic`, `reference`, `reward`: the roles in this process.
- `informed`: a critic that also reads the solution, in this process or on Ray.
- `learner`, `meter`: what actor and critic share: gradient steps, and means over tokens.
- `functions`, `reward_model`, `remote`, `shaping`: what a reward is made of.

Imports ledger (for notes), rollout, data, models, batch, config, algorithms and errors.
"""
