"""Names of the metrics of a step, each once, and how several optimizer steps are merged into one.

docs/reference/metrics.md says what they mean.
"""

REWARD, REWARD_MIN, REWARD_MAX = "reward", "reward_min", "reward_max"
REWARD_PARTS, PASS_1 = "reward_parts", "pass@1"
GROUPS, GROUPS_DROPPED = "groups", "groups_dropped"
GROUPS_WITH_SIGNAL, GROUPS_NO_SIGNAL = "groups_with_signal", "groups_no_signal"
UNSCORED, REFILLED, STATUS = "unscored", "refilled", "status_"
LENGTH, AT_LENGTH_LIMIT, SAMPLED_TOKENS = "length", "at_length_limit", "sampled_tokens"
TURNS, TOOL_CALLS, TOOL_ERRORS, ENDED_BY = "turns", "tool_calls", "tool_errors", "ended_by"
OBJECTIVE, DRAWN_AFTER, SECONDS = "objective", "drawn_after", "seconds"
SPEED, SAMPLING_SPEED = "tokens_per_second", "sampling_tokens_per_second"
ENTROPY, TOKEN_ENTROPY = "entropy", "token_entropy"
LOSS, LEARNING_RATE, GRAD_NORM, KL = "loss", "lr", "grad_norm", "kl"
TOKENS, ROWS, MICRO_BATCHES, INNER_STEPS = "tokens", "rows", "micro_batches", "inner_steps"
CLIP_FRACTION, RATIO_MAX = "clip_fraction", "ratio_max"
LOG_RATIO_STD, LOG_RATIO_MAX = "log_ratio_std", "log_ratio_max"
TRUNCATED, ESS, MASKED, BELOW_FLOOR = "truncated", "ess", "masked", "below_floor"
GAP_MEAN, GAP_MAX = "sampler_gap_mean", "sampler_gap_max"
PROBE_BEFORE, PROBE_AFTER = "probe_before", "probe_after"

RESULTS, PROMPTS_LEFT_OUT = "results", "prompts_left_out"
"""Of an evaluation, which also has ENTROPY, UNSCORED and SECONDS."""

SUMMED = {TOKENS, ROWS, MICRO_BATCHES}
LARGEST = {GRAD_NORM, RATIO_MAX, LOG_RATIO_MAX, GAP_MAX}
SMALLEST = {ESS}
LAST = {LEARNING_RATE}
"""How the values of one batch's optimizer steps become one; others are averaged."""
