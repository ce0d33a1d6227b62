objective=(algorithm.adv_estimator=bestofk +algorithm.bestofk.objective=max@8 +algorithm.bestofk.trust_region=[0.2,0.28])
exact=(actor_rollout_ref.actor.policy_loss.loss_mode=bestofk actor_rollout_ref.actor.ppo_mini_batch_size=4)
python -m bestofk.adapters.verl "${settings[@]}" "${objective[@]}" "${exact[@]}"  # is the plug-in there, do the settings fit?
python -m verl.trainer.main_ppo "${settings[@]}" "${objective[@]}" "${exact[@]}"
