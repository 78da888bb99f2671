"""This package has the samplers, and the collectors that fill a round with scored groups.

Engines in this process:
vllm_sampler, engine_arguments   vLLM's engine, and its settings (servers take them too)
known_arguments        names of vLLM's arguments, checked before anything starts
vllm_version           which vLLM is installed
pooling                prompts of ranks that share an engine
model_classes          protects transformers' classes from vLLM's changes
weight_names           weights under the names that vLLM's loader knows
transformers_sampler   sampling where there is no vLLM
seeds, stop_tokens     one seed for each completion; the tokens that end one
engine_use             how full an engine's cache gets
cache_room             says where an engine's cache has room for few completions
checked_sampler        checks a sampler's completions before they are used

vLLM servers:
server_sampler         asks servers for completions
fleet                  all servers of a run: sends them weights, gives up lost ones, takes them back
restarts               when a server is restarted, in a run and under `grpo serve`
servers, replica       how servers are started; one server
dispatch               hands requests out to the servers
server_claim, claims   lets one run at a time use a server; what a run says and asks to claim one
served                 what a server runs, compared with what a run needs
server_key             guards a server with the run's key
server_use             says how full a server's cache was at its fullest moment

A round:
collect                prompts → scored groups, with dynamic sampling or a budget
group_source           a round's groups, sampled on demand or ahead
grading_thread         grades groups while others are sampled
ahead                  samples the next round while this one is learned from
"""
