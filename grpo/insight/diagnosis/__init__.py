"""This package finds what is wrong with a run from its log.

diagnostics, findings    the diagnosis, its findings and thresholds
exclusions, advice       which findings exclude each other; what advice is left where some is set already
evidence, windows        levels and changes of noisy series; means of correlated values
progress, setbacks, swings, reward_parts, policy_signs, symptoms, no_reward, gross    the checks
"""
