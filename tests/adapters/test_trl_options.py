"""Which of TRL's settings the adapter sets, warns about, and does not accept."""

import copy
import logging
import warnings
from dataclasses import fields

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed here: pip install 'bestofk[trl]'")

import bestofk
from adapters.trl_runs import Judge, config, trainer
from bestofk.adapters.groups import logged_sizes
from bestofk.adapters.inner_steps import check_version
from bestofk.adapters.trl import BestOfKTrainer
from bestofk.adapters.trl.grpo_settings import (
    BIASED,
    UNBIASED,
    as_objective,
    exact_steps,
    prepared,
)
from bestofk.objectives import ObjectiveWarning

# a second pass is biased, which a test of test_trl_options.py hears
pytestmark = pytest.mark.filterwarnings("ignore:num_iterations=")


def ready(tmp_path, text="max@4", loss_type=None, **options):
    goal = as_objective(text)
    return prepared(goal, config(tmp_path, **options), loss_type)


ERRORS = [
    ({"scale_rewards": "batch"}, r"scale belongs to the objective \(max@4\)"),
    ({"multi_objective_aggregation": "normalize_then_sum"}, r"not the best of k by reward"),
    ({"num_generations": 4}, r"max@4 needs more than 4 samples per prompt, got 4.*max@4:loo-1"),
    ({"max_completion_length": None}, r"'dr_grpo' divides by max_completion_length, got None"),
]
SEVERAL = {"num_iterations": 2}
OFF_POLICY_ERRORS = [
    ({"steps_per_generation": 4, "gradient_accumulation_steps": 6},
     r"steps_per_generation = 4 is not a multiple of gradient_accumulation_steps = 6"),
    ({"steps_per_generation": 1, **SEVERAL, "num_iterations": 3}, r"is not a multiple of"),
    ({"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2,
      "steps_per_generation": 4},
     r"per_device_train_batch_size = 6 times gradient_accumulation_steps = 2 is 12 rows, not a "),
    ({**SEVERAL, "loss_type": "bnpo"}, r"loss_type='bnpo' divides by.*choose 'dr_grpo' or 'luspo'"),
    ({**SEVERAL, "off_policy_mask_threshold": 0.5}, r"off_policy_mask_threshold=0.5 leaves"),
    ({**SEVERAL, "top_entropy_quantile": 0.2}, r"top_entropy_quantile=0.2 leaves tokens out"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), [*ERRORS, *OFF_POLICY_ERRORS])
def test_a_setting_that_changes_the_meaning_is_an_error_before_a_model_is_loaded(
    options, message, tmp_path
):
    with pytest.raises(ValueError, match=message):
        BestOfKTrainer("no/such-model", Judge(), config(tmp_path, **options), objective="max@4")


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("select@4", "select@4 needs scores that choose a sample: name one of reward_funcs with"),
        ("maj@4", "maj@4 needs answers, which TRL does not give"),
    ],
)
def test_an_objective_of_more_than_rewards_is_an_error_before_a_model_is_loaded(
    objective, message, tmp_path
):
    with pytest.raises(ValueError, match=message):
        BestOfKTrainer("no/such-model", Judge(), config(tmp_path), objective=objective)


def test_vllms_own_ratio_is_an_error_with_several_steps_and_named_with_one(tmp_path):
    args = config(tmp_path, num_iterations=2)
    args.use_vllm = True
    with pytest.raises(ValueError, match="vllm_importance_sampling_correction=True multiplies"):
        prepared(as_objective("max@4"), args, "dr_grpo")
    args.num_iterations = 1
    with pytest.warns(ObjectiveWarning, match="own ratio, and max@4 would need its siblings'"):
        prepared(as_objective("max@4"), args, "dr_grpo")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ObjectiveWarning)
        prepared(as_objective("mean"), args, "dr_grpo")


def test_mistyped_names_get_a_suggestion(tmp_path):
    with pytest.raises(ValueError, match="'passk-training'"):
        as_objective("passk-trainin@4")
    with pytest.raises(ValueError, match="unknown loss_type 'dr-grpo'; did you mean 'dr_grpo'"):
        ready(tmp_path, loss_type="dr-grpo")
    with pytest.raises(ValueError, match="objective= is needed, a string such as 'max@8'"):
        as_objective(None)


@pytest.mark.parametrize(
    "goal",
    [
        "grpo", "dr-grpo", "passk-training@4", "rs-grpo",
        bestofk.objective("max@4", off_policy="none"),
    ],
    ids=str,
)  # fmt: skip
def test_objectives_without_sibling_ratios_take_several_steps_with_trls_clipped_loss(
    goal, tmp_path
):
    """Normalised objectives never had more than the clip; off_policy='none' asks for it."""
    args = ready(tmp_path, goal, num_iterations=3)
    assert args.num_iterations == 3
    assert not exact_steps(as_objective(goal), args)


@pytest.mark.parametrize(
    "text", ["max@4", "max@4:loo-1", "pass@4:none", "mean", "reinforce", "mean/50%/max@4"]
)
def test_objectives_with_an_off_policy_form_take_several_exact_steps(text, tmp_path):
    assert exact_steps(as_objective(text), ready(tmp_path, text, num_iterations=2))
    assert exact_steps(as_objective(text), ready(tmp_path, text, steps_per_generation=4))
    assert not exact_steps(as_objective(text), ready(tmp_path, text))


@pytest.mark.parametrize("text", ["max@4:loo", "top2@4", "maxrl"])
def test_unbiased_objectives_without_an_off_policy_form_need_one_step_per_batch(text, tmp_path):
    with pytest.raises(ValueError, match="has no off-policy form"):
        ready(tmp_path, text, num_iterations=2)
    assert ready(tmp_path, text, gradient_accumulation_steps=4, steps_per_generation=2)


def test_trls_default_length_normaliser_gives_way_and_a_chosen_one_is_named(tmp_path, caplog):
    theirs = config(tmp_path)
    kept = copy.copy(vars(theirs))
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = prepared(as_objective("max@4"), theirs, None)
    assert (ours.loss_type, ours.scale_rewards) == ("dr_grpo", "none")
    assert vars(theirs) == kept  # the user's config is left as it is
    [record] = caplog.records
    assert "'dr_grpo'" in record.getMessage()
    assert "default 'dapo'" in record.getMessage()
    with pytest.warns(ObjectiveWarning, match="'dapo' divides by the tokens of the batch"):
        assert ready(tmp_path, loss_type="dapo").loss_type == "dapo"
    for name in BIASED.keys() - {"dapo"}:
        with pytest.warns(ObjectiveWarning, match=f"loss_type='{name}' divides by.*is biased"):
            chosen = prepared(as_objective("max@4"), config(tmp_path, loss_type=name), None)
        assert chosen.loss_type == name
    for name in UNBIASED:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            chosen = prepared(as_objective("max@4"), config(tmp_path, loss_type=name), None)
            assert chosen.loss_type == name


def test_every_loss_type_of_trl_is_known_here(tmp_path):
    """TRL names its loss types in the help of the option; a new one must be judged first."""
    from trl import GRPOConfig

    [option] = [each for each in fields(GRPOConfig) if each.name == "loss_type"]
    sentence = option.metadata["help"].partition("Supported values are")[2].partition(".")[0]
    named = {word.strip("', ") for word in sentence.replace(" and ", " ").split()} - {""}
    assert named == UNBIASED.keys() | BIASED.keys()


def test_every_loss_type_divides_as_it_is_said_to(tmp_path):
    """One batch through TRL's own loss: what each row's A_i ∇log π(y_i) is multiplied with.

    It is 1/B for the gradient of our exact loss. An unbiased one may differ by a constant that
    knows nothing of the lengths that were sampled.
    """
    lengths, weights = torch.tensor([2, 5, 9, 4]), torch.tensor([1.0, -1.0, 2.0, -2.0])
    mask = (torch.arange(9) < lengths[:, None]).long()
    logps = torch.full((4, 9), -1.0, requires_grad=True)
    batch = {
        "prompt_ids": torch.ones(4, 2).long(), "prompt_mask": torch.ones(4, 2).long(),
        "completion_ids": torch.ones(4, 9).long(), "completion_mask": mask,
        "advantages": weights, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    options = {"num_generations": 4, "per_device_train_batch_size": 4,
               "gradient_accumulation_steps": 1}  # fmt: skip
    seen = {}
    for name in [*UNBIASED, *BIASED]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ObjectiveWarning)
            run = trainer(tmp_path, Judge(), "max@2", named={"loss_type": name}, **options)
        run.current_gradient_accumulation_steps = 1
        run._get_per_token_logps_and_entropies = lambda *_, **__: (logps, torch.zeros(4, 9), None)
        run.model.train()
        [gradient] = torch.autograd.grad(run._compute_loss(run.model, batch), logps)
        seen[name] = -gradient.sum(dim=1) / lengths / weights
    tokens = lengths.sum()
    for name in UNBIASED:
        assert torch.allclose(seen[name], seen[name][0].expand(4)), name
    assert seen["luspo"][0] == pytest.approx(1 / 4)
    assert seen["dr_grpo"][0] == pytest.approx(1 / 4 / 12)
    for name in ("grpo", "sapo"):
        assert torch.allclose(seen[name], 1 / (4.0 * lengths)), name
    for name in ("dapo", "bnpo", "vespo"):
        assert torch.allclose(seen[name], (1.0 / tokens).expand(4)), name
    assert torch.allclose(seen["cispo"], (0.2 / tokens).expand(4))  # its clip is epsilon_high = 0.2


CAUTIONS = [
    ({"top_p": 0.9}, "top_p=0.9 changes what is sampled"),
    ({"top_k": 20}, "top_k=20 changes what is sampled"),
    ({"min_p": 0.1}, "min_p=0.1 changes what is sampled"),
    ({"repetition_penalty": 1.1}, "repetition_penalty=1.1 changes"),
    ({"generation_kwargs": {"num_beams": 2}}, "generation_kwargs="),
    ({"top_entropy_quantile": 0.2}, "leaves tokens out of the loss"),
    ({"off_policy_mask_threshold": 0.5}, "leaves samples of negative advantage out"),
]


@pytest.mark.parametrize(("options", "message"), CAUTIONS)
def test_what_biases_the_update_is_named(options, message, tmp_path):
    with pytest.warns(ObjectiveWarning, match=message):
        ready(tmp_path, **options)


def test_a_second_pass_is_labelled_and_mini_batches_are_not(tmp_path):
    with pytest.warns(ObjectiveWarning, match="num_iterations=2 reuses samples"):
        ready(tmp_path, num_iterations=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ObjectiveWarning)
        several = ready(tmp_path, steps_per_generation=4, gradient_accumulation_steps=2)
    assert exact_steps(as_objective("max@4"), several)


def test_trls_ratio_on_the_kl_is_switched_off_with_several_exact_steps_and_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        several = ready(tmp_path, steps_per_generation=4, beta=0.1, loss_type="luspo")
    assert not several.use_bias_correction_kl
    assert "use_bias_correction_kl is False" in caplog.text
    assert (
        ready(tmp_path, beta=0.1).use_bias_correction_kl == config(tmp_path).use_bias_correction_kl
    )


def test_an_older_trl_is_an_error_that_names_the_one_to_install():
    with pytest.raises(ValueError, match=r"needs TRL 1.10 or newer, .* TRL 1.9.3: .*'trl>=1.10'"):
        check_version("TRL", "1.9.3", (1, 10))
    check_version("TRL", "1.10.0.dev1", (1, 10))


def test_the_logged_k_are_powers_of_two_and_the_objectives_own():
    assert logged_sizes(8, 4) == [1, 2, 4, 8]
    assert logged_sizes(12, 6) == [1, 2, 4, 6, 8]
    assert logged_sizes(4, 8) == [1, 2, 4]
    assert logged_sizes(1, 4) == [1]
