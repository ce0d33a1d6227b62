objective=(algorithm.adv_estimator=bestofk +algorithm.bestofk.objective=max@8)
python -m bestofk.adapters.verl "${settings[@]}" "${objective[@]}"  # is the plug-in there, n large enough?
python -m verl.trainer.main_ppo "${settings[@]}" "${objective[@]}"
