objective=(algorithm.adv_estimator=bestofk +algorithm.bestofk.objective=max@8)
python -m bestofk.adapters.verl "${settings[@]}" "${objective[@]}"  # is the plug-in there, do the settings fit?
python -m verl.trainer.main_ppo "${settings[@]}" "${objective[@]}"
