"""Every threshold of the checks, each once. The rules in words.toml and the docs quote them."""

from __future__ import annotations

ACCURACIES = ("eval/greedy_accuracy", "eval/sampled_accuracy")
"""Metrics that tell how often held-out answers are right, the preferred one first."""

# ---- smoothing ----

SMOOTH = 5
"""Steps of the running median that most checks look at."""
PERSIST = 5
"""Steps in a row in which a rule must hold."""
SLACK = 5
"""Steps by which a cause may be noticed later than what it leads to."""

WATCH_EACH = 100
"""First steps that are all looked at during training; then every second, third, … step."""
WATCH_LEAST = 10
"""Steps between two looks, at most."""
WATCH_START = 20
"""Steps after which training says what an untrained model may show and learn away."""

# ---- does the run learn? ----

SCORE_START = 3
"""First steps whose mean score is the start."""
SCORE_WINDOW = 10
"""Steps of the running mean of the score."""
GAIN_ERRORS = 2.5
"""Standard errors by which the score must rise to count as learning, or the KL differ from 0."""
LEAST_GAIN = 0.02
"""Share of the top score by which it must rise."""
SOLVED = 0.9
"""Share of the top score from which a task counts as solved: nothing is left to learn."""

# ---- entropy ----

ENTROPY_LOW = 0.05
"""Nats per token below which nothing is explored, if the task is not solved."""
COLLAPSED = 0.2
"""Share of the first entropy below which a policy that learns nothing has collapsed."""
COLLAPSED_EARLY = 0.05
"""Share of the first entropy below which a policy whose score stands still has collapsed."""
STUCK_STEPS = 30
"""Steps without a gain after which a score stands still."""
STUCK_LOW = 0.5
"""Share of the top score below which that matters: a good policy is sure of its answers."""
EXPLODED = 2.0
"""Times the first entropy above which it has exploded …"""
EXPLODED_NATS = 0.5
"""… if it also rose by so many nats."""
RISING = 1.15
"""Times the first entropy from which a rise that leads to an explosion is dated …"""
BONUS_RULES = 1.0
"""… or from the earlier step at which the bonus pays this many times the spread of advantages."""

# ---- KL ----

KL_FAR = 1.0
"""Nats per token from the reference that are far in any run."""
KL_FAR_UNLEARNED = 0.7
"""Nats per token that are far if the score gained nothing."""
KL_NEGATIVE = -0.02
"""A mean KL estimate below this cannot be chance over a step's tokens."""
KL_PINNED = 1e-3
"""Nats per token below which the policy is still at the reference."""
KL_STRONG = 0.5
"""β from which the penalty may hold the policy at the reference …"""
KL_HELD = 0.03
"""… with a KL below so many nats per token …"""
KL_RULES = 2.0
"""… or takes, or makes advantages spread by, so many times the score …"""
KL_RULES_STEPS = 10
"""… for so many steps."""

# ---- learning rate ----

CLIP_HIGH = 0.25
"""Share of clipped tokens that says the policy moves too far in one step."""
APPROX_KL_HIGH = 0.05
"""KL between the policies before and after an update, in nats per token, that is too far."""
CLIP_CALM = 0.005
"""KL of an update below which a high share of clipped tokens means that the clip is too tight."""
RATIO_FAR = 2.0
"""Ratio above which, or below whose inverse, a token's probability moved far …"""
RATIO_TAIL = 0.05
"""… and the share of tokens that may."""
LR_PERSIST = 3
"""Steps in a row: a high learning rate does its harm quickly."""
KL_JUMP = 0.6
"""Nats per token by which the distance to the reference may grow within LR_PERSIST steps."""
NO_RATIO = 1e-7
"""Approximate KL below which the ratio is always 1: there is one update per step."""
APPROX_KL_GOOD = 0.005
"""Approximate KL of a good update: what a proposed learning rate aims at."""
APPROX_KL_LOW = 1e-5
"""KL of an update below which the policy hardly moves."""
LOW_STEPS = 20
"""Steps that a policy must hardly move in."""
RATE_LOW = 0.1
"""Share of actor.lr below which warm-up holds the learning rate down."""
RATE_NONE = 1e-3
"""Share of the highest learning rate below which it is 0 …"""
RATE_ENDED = 10
"""… for so many steps, and a tenth of all: the schedule is over too early."""
NORM_CUT = 100.0
"""Times max_grad_norm above which clipping takes the gradient away."""
SPIKE = 10.0
"""Times its running median that a gradient norm is a spike."""
SPIKE_ACTOR = 10.0
"""Gradient norm of the actor below which nothing is a spike."""
SPIKE_CRITIC = 100.0
"""The same for the critic."""
SPIKES = 3
"""Spikes within SPIKE_WINDOW steps."""
SPIKE_WINDOW = 50
NEAR_NAN = 1e5
"""A loss, value, KL or gradient norm of this size is about to overflow."""

# ---- reward ----

CONSTANT_STEPS = 8
"""Steps with exactly the same mean score."""
SATURATED_STEPS = 20
"""Steps with every answer at the top score."""
NOISY = 0.3
"""Share of repeated answers to a prompt that get another score the second time …"""
NOISY_SPREAD = 0.2
"""… by this share of the spread of all scores …"""
NOISY_STEPS = 64
"""… over this many recorded steps …"""
NOISY_LEAST = 8
"""… and the repeated answers that this needs."""
SCALE_LARGE = 8.0
"""Standard deviation of raw advantages above which rewards are too large for the defaults."""
SCALE_SMALL = 0.003
"""Standard deviation of raw advantages below which rewards are too small."""
SCALE_TIMES = 10.0
"""Times the size of the scores above which the spread of advantages has another cause."""
OUTLIER = 5.0
"""Times the range of most scores that all scores of a prompt lie away from the others …"""
OUTLIERS_LEAST = 64
"""… of at least so many."""
SCALE_STEPS = 10
"""Steps over which that is measured."""
PART_DOMINATES = 50.0
"""Times the spread of another part of the reward, both with their weights."""
SCORES_CLIPPED = 0.5
"""Share of scores beyond reward.clip."""
HELD_OUT_BETTER = 0.1
"""Share of the top score by which held-out answers are better than those of training."""
HELD_OUT_SAME = 0.1
"""Share of the gain in training below which held-out scores gained nothing."""
ACCURACY_FLAT = 0.03
"""Gain of held-out accuracy that is none, if it is within chance too."""
HELD_OUT = 256
"""Held-out responses, where their number is not known."""
EXPLOITED_GAIN = 0.1
"""Share of the top score by which the score rises while accuracy does not."""
ACCURACY_FALL = 0.05
"""Fall of held-out accuracy from its best that counts, if it is beyond chance …"""
FALL_ERRORS = 3.0
"""… by so many standard errors: the best of several is high by chance too."""
OVERFIT_GAP = 0.3
"""Distance between the training score and the held-out score, as a share of the top score."""
LOST = 0.5
"""Share of what the score had gained that it lost again."""
WORSE = 0.2
"""Share of its start by which the score fell below it."""
NO_PROGRESS_STEPS = 60
"""Steps without any gain."""

# ---- length ----

TRUNCATED = 0.5
"""Share of responses that are cut off."""
CUT_STEPS = 64
"""Recorded steps in which cut-off responses are compared with finished ones:"""
CUT_RIGHT = 0.1
"""truncation is no fault if at least this share of those cut off is right all the same …"""
CUT_LOSES = 0.5
"""… and they surely lose less than this share of what finished ones get."""
LONGER = 1.6
"""Times the first length, without a better score."""
SHORTER = 0.5
"""Share of the first length, without a better score."""

EOS_IGNORED = 0.3
"""Share of responses that go on behind EOS."""

EOS_MISSING = 0.5
"""Share of finished responses that do not end with EOS …"""
EOS_LEAST = 8
"""… over at least so many."""

# ---- groups ----

FLAT_GROUPS = 0.8
"""Share of groups in which all scores are equal …"""
FLAT_SERIOUS = 0.95
"""… and from which hardly anything is learned."""
COPIED = 0.3
"""Share of answers with a twin in their group, above what their probabilities give …"""
COPIED_LEAST = 64
"""… over at least so many answers."""
PAIR_COPIED = 0.98
"""Share of groups in which the answers at two places are the same, if chance gives less …"""
PAIRS_LEAST = 24
"""… over at least so many groups."""
MIXED = 0.1
"""Distance between baselines of equal answers in a group, as a share of the spread of scores …"""
MIXED_SHARE = 0.3
"""… in this share of the neighbours that are equal."""
SAME_RESPONSE = 0.7
"""Share of answers to different prompts that are the same text."""
LOOPING = 0.3
"""Share of responses that repeat themselves."""
LOOP_DISTINCT = 0.3
"""Share of different 4-grams below which a response repeats itself."""

# ---- critic ----

CRITIC_STEPS = 30
"""Updates that a critic gets before it is judged."""
CRITIC_WINDOW = 20
"""Steps of the running median of explained variance."""
USELESS = 0.0
"""Explained variance at or below which the critic is no better than a constant."""
WRONG_SCALE = -1.0
"""Explained variance below which V varies more than the returns do."""
FAR_TOO_WIDE = -10.0
"""Explained variance so low that PERSIST steps show it …"""
ERROR_OF_V = 0.1
"""… if V is off by this share of the top score in one of them."""
VALUE_BIAS = 2.0
"""Standard deviations of the advantage by which V is off on average."""
STILL = 0.02
"""Share of its distance to the returns by which mean V must move, or the critic stands still."""
VALUE_CLIP = 0.3
"""Share of tokens whose value clipping binds."""

# ---- sampler ----

MISMATCH = 0.03
"""Mean difference of log-probs between sampler and trainer; rounding to bfloat16 makes 0.005."""
MISMATCH_SERIOUS = 0.15
MISMATCH_START = 0.02
"""Difference at the first step below which sampler and trainer agreed then."""
MISMATCH_FAR = 1.0
"""Difference from which the answers are not those of these prompts, or of this model."""
PADDED = 0.01
"""Difference of shorter prompts' answers, where those of the longest prompts …"""
UNPADDED = 1e-3
"""… differ by less than this: it is the padding."""
SHARP = 0.5
"""Share of the entropy below which the mean of −log π of sampled tokens is too small …"""
SHARP_ENTROPY = 0.1
"""… where the entropy is above so many nats …"""
SHARP_STEPS = 3
"""… in so many recorded steps."""
HOT_GAP = 0.25
"""Share of the top score by which greedy answers are better than sampled ones."""
STALE = 1.5
"""Training steps that a response is older than the policy that is trained on it."""
STALE_SERIOUS = 4.0

# ---- tools and data ----

TOOL_FAILURES = 0.3
"""Share of tool calls that fail."""
TOOL_FAILURES_SERIOUS = 0.8
TOOLS_UNUSED = 0.01
"""Calls per response below which the tools are not used."""
REPEATED = 0.5
"""Share of a step's prompts that stand in the same step again."""
DATA_STUCK = 0.8
"""Share of a step's prompts that were those of the step before."""

PROMPTS_DIFFER = 0.5
"""Share of prompts whose ids do not spell their text."""
PROMPTS_EQUAL = 0.7
"""Different prompts' ids, as a share of the different texts, below which text is lost."""
LEAKED = 0.5
"""Share of held-out prompts that are trained …"""
LEAK_STEPS = 64
"""… within so many recorded steps."""

# ---- ledger laws ----

LAW_STEPS = 4
"""Recorded steps that the laws look at: the first, the last and some between."""
OTHER_V = 0.5
"""Distance of V between equal states, as a share of that between other rows …"""
EQUALS_LEAST = 16
"""… over at least so many pairs."""
FORESIGHT = 5.0
"""Standard errors by which changes of V go with surprises of tokens that are not sampled yet …"""
FORESIGHT_TOKENS = 1000
"""… over at least so many tokens …"""
SURPRISE_OFF = 3.0
"""… whose mean surprise is 0 within so many: else log-probs and entropy are not the sampler's."""
LAW_SAMPLES = 8
"""Responses of each that are recomputed."""
FLIPPED = 0.5
"""Share of tokens whose advantage changes its sign by whitening."""
FLIP_STEPS = 3
"""Recorded steps in which that must be so."""
FIRST_RATIO = 0.05
"""|log ρ| that the first minibatch may have on average: its policy is the old one."""
BACKWARDS = 3.0
"""Standard errors by which Σ Â·log ρ of an answer is below 0 …"""
BACKWARDS_STEPS = 3
"""… over at least so many recorded steps …"""
BACKWARDS_ROWS = 8
"""… of at least so many different answers …"""
BACKWARDS_FAR = 0.1
"""… whose mean |log ρ| is smaller: a larger step may overshoot."""
FIRST_RATIO_EXACT = 0.01
"""The same where sampler and trainer compute in float32 alike."""
OTHER_REFERENCE = 0.1
"""KL to the reference in nats per token before the first update: it is 0 if both are one model."""
OTHER_REFERENCE_OWN = 0.01
"""The same in our own runs, which measure it before the update: only rounding is left."""
RATIO_ONE = 1e-9
"""Approximate KL below which every ratio is 1, apart from rounding."""
CREDIT_LOST = 0.1
"""γ to the power of the length below which the first token gets next to nothing of the score."""
