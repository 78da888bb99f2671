"""This room has the samplers, and the ways in which a round is filled.

Engines in this process:
vllm_sampler, engine_arguments   vLLM's engine, and its settings (servers take them too)
pooling                prompts of ranks that share an engine
model_classes          keeps transformers' classes as they are when vLLM changes them
weight_names           weights under the names that vLLM's loader knows
transformers_sampler   sampling where there is no vLLM
seeds, stop_tokens     one seed for each completion; the tokens that end one
engine_use             how full an engine's cache gets
checked_sampler        looks at a sampler's answers before they are used

vLLM servers:
server_sampler         asks servers for completions
fleet                  all servers of a run: who gets weights, who is lost, who is restarted
servers, replica       how servers are started; one of them
dispatch               hands requests out to the servers
server_key             guards a server with the run's key

A round:
collect                prompts → scored groups, with dynamic sampling or a budget
group_source           where a round's groups come from: asked when they are needed, or before
grading_thread         grades groups while others are sampled
ahead                  samples the next round while this one is learned from
"""
