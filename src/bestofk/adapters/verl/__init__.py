"""verl: `algorithm.adv_estimator=bestofk +algorithm.bestofk.objective=max@8`.

verl imports `bestofk.adapters.verl.plugin` in each of its processes and hides errors of that. This
command shows them, and checks the settings of a run:

    python -m bestofk.adapters.verl

With `actor.policy_loss.loss_mode=bestofk` each optimiser step has exact off-policy advantages.
"""
