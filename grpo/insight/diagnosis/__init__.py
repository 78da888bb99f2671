"""This package finds what is wrong with a run from its log.

diagnostics, findings    the diagnosis with advice that is not followed yet; its findings and thresholds
evidence, windows        levels and changes of noisy series; means of correlated values
progress, setbacks, swings, reward_parts, symptoms, episodes, no_reward    the checks
"""
