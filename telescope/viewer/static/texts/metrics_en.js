// English: what each metric means, shortened from docs/metrics.md.

export const metricsEn = {
  "reward/score_mean":
    "mean over responses of the task score: the weighted sum of its parts, before shaping and the KL penalty",
  "reward/<part>": "mean over responses of this part of the score",
  "reward/<part>/<metric>": "mean over responses of a metric that this reward function returned",
  "reward/overlong": "mean over responses of the penalty for length",
  "reward/clipped": "share of responses whose score reward.clip cut",
  "reward/norm_mean":
    "μ of reward.normalise: mean score of all responses trained on so far, this step's included",
  "reward/norm_std": "σ of reward.normalise: spread of those scores",
  "reward/shaped_mean":
    "mean over responses of the shaped score: after normalising, clipping and the penalty",
  "reward/kl":
    "mean over tokens of the KL estimate between π_old and the reference, of the kind credit.kl_kind",
  "reward/kl_coef": "β, the weight of the KL to the reference in this step's token rewards",
  "reward/flat_groups": "share of prompts whose responses all have the same score",
  "reward/token_reward_mean": "mean over tokens of r[i] = score[i] − β·kl[i]",
  "credit/advantage_mean": "mean over tokens of the raw advantage A[i]",
  "credit/advantage_std": "standard deviation of the raw advantage A[i]: the σ of whitening",
  "critic/value_mean": "mean over tokens of V[i] at rollout time",
  "critic/return_mean": "mean over tokens of R[i], the critic's target",
  "critic/explained_variance":
    "1 − Var(R − V)/Var(R) over tokens, with V at rollout time: 1 is perfect, 0 no better than a constant",
  "critic/vf_loss": "mean over optimizer steps of the value loss critic.loss",
  "critic/vf_clipfrac": "share of tokens where the clipped prediction had the larger error",
  "critic/out_of_range":
    "share of tokens whose R[i] is outside critic.value_low to critic.value_high and was set to the nearer end",
  "critic/vpred_mean": "mean over tokens of the predictions during the update",
  "critic/grad_norm": "mean over optimizer steps of the gradient norm before clipping",
  "critic/lr": "learning rate of this step",
  "actor/pg_loss":
    "mean over minibatches of the policy loss, without entropy and KL terms: −objective, aggregated as actor.aggregation says",
  "actor/pg_clipfrac":
    "share of tokens that the loss clipped, left outside its trust region or chose to drop, so that their gradient is 0",
  "actor/pg_clipfrac_lower": "share of tokens with A < 0 whose loss the dual clip bounded",
  "actor/entropy":
    "mean over tokens of the entropy of π(·|s_i), in nats, at the sampling temperature",
  "actor/approx_kl":
    "mean over tokens of ρ − 1 − log ρ: the k3 estimate of KL(π_old ‖ π), never negative, exactly 0 before the first optimizer step",
  "actor/ppo_kl": "mean over tokens of −log ρ: the k1 estimate, which may be negative",
  "actor/importance": "mean over tokens of the weight for the sampler's mismatch",
  "actor/off_policy_masked":
    "share of tokens without a loss because their response is too far from the policy",
  "actor/rejected": "share of tokens left out because π_old/π_sampler is out of bounds",
  "actor/entropy_coef": "weight of the entropy bonus in this step",
  "actor/beta": "weight of KL(π_old ‖ π) in the loss of this step",
  "actor/kl_loss": "mean over tokens of the KL to the reference in the loss",
  "actor/grad_norm": "mean over optimizer steps of the gradient norm before clipping",
  "actor/updates":
    "optimizer steps taken: epochs × minibatches, fewer if actor.target_kl stopped them",
  "actor/lr": "learning rate of this step",
  "response/length_mean": "mean over responses of the tokens that the policy wrote, EOS included",
  "response/truncated":
    "share of responses that reached rollout.max_response_tokens, or rollout.max_turns, without EOS",
  "response/right_truncated":
    "share of the cut-off responses that are right all the same (score ≥ eval.correct_score)",
  "response/right_finished": "share of the finished responses that are right",
  "response/tool_calls": "mean over responses of the calls they made",
  "response/tool_failures":
    "mean over responses of the calls that raised or took longer than rollout.tool_seconds",
  "rollout/logprob_diff":
    "mean over tokens of |sampler's log-prob − training forward's log-prob|: numerical noise, unless sampler and trainer disagree",
  "rollout/ess":
    "effective sample size of the tokens' ratios π_old/π_sampler, as a share of their number; 1 if sampler and trainer agree",
  "rollout/chi2_token":
    "χ² of the tokens' ratios π_old/π_sampler: mean(ratio²) − 1; 0 if sampler and trainer agree",
  "rollout/chi2_seq": "χ² of whole responses, whose ratio is the product of their tokens' ratios",
  "rollout/staleness":
    "training steps that updated the actor between sampling a response and training on it, mean over responses",
  "rollout/flat_groups": "prompts of the step whose responses all have the same score",
  "rollout/refilled_groups":
    "prompts whose responses all had the same score and that were replaced",
  "rollout/refill_rounds": "extra rounds of sampling to replace such prompts",
  "rollout/refill_prompts": "other prompts that were answered and scored to replace them",
  "rollout/own_score_mean": "mean score of the step's own prompts, before any is replaced",
  "data/dropped_prompts":
    "training prompts longer than data.max_prompt_tokens that were dropped (step 0 only)",
  "data/dropped_eval_prompts":
    "held-out prompts longer than data.max_prompt_tokens that were dropped (step 0 only)",
  "warm_start/loss":
    "cross-entropy of the completions in the last step of the warm start, in nats per token",
  "warm_start/grad_norm": "gradient norm in the last step of the warm start, before clipping",
  "warm_start/lr": "learning rate in the last step of the warm start",
  "warm_start/dropped": "rows of the warm start that were left out because they are too long",
  "eval/sampled_accuracy":
    "share of responses, sampled at the rollout temperature from held-out prompts, whose score reaches eval.correct_score",
  "eval/sampled_score": "mean score of responses sampled from held-out prompts",
  "eval/greedy_accuracy":
    "share of held-out prompts answered right with the likeliest token at every step",
  "eval/greedy_score": "mean score with the likeliest token at every step",
  "eval/pass@k":
    "share of held-out prompts with at least one right answer among k samples, an unbiased estimate from eval.n samples",
  "eval/maj@k": "share of sets of k samples whose most frequent answer is right",
  "eval/greedy_part/<part>":
    "share of greedy answers for which this part of the reward reaches eval.correct_score",
  "eval/greedy_accuracy/<value>":
    "greedy accuracy of the prompts whose column eval.by has this value",
  "eval/<set>/<metric>": "the metric of this name, of the named evaluation set",
  "timing/rollout":
    "seconds for sampling, and for the old log-probs if they have a forward pass of their own",
  "timing/values": "seconds for the critic's forward",
  "timing/reference": "seconds for the reference's forward",
  "timing/reward": "seconds for the reward functions",
  "timing/advantages": "seconds for rewards, advantages and their metrics",
  "timing/update_critic": "seconds for the critic's update",
  "timing/update_actor": "seconds for the actor's update",
  "timing/ledger":
    "seconds spent waiting for the previous step's ledger file and handing over this one's",
  "timing/step": "seconds for the whole step, without evaluation and checkpoints",
  "perf/tokens_per_s": "response tokens divided by timing/step",
  "perf/mfu":
    "model FLOPs utilisation of the two updates, as a share of what a large matrix product reaches",
  "perf/peak_gib": "peak memory of the step in GiB",
};
