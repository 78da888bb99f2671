"""This package has the samplers, and the collectors that fill a round with scored groups.

Engines in the learner's process, on a CPU:
vllm_sampler           vLLM's engine there
model_classes          protects transformers' model classes from that engine
engine_arguments       its settings, which servers take too; a seed for each completion; why an engine did not start
known_arguments        names of vLLM's arguments, checked before anything starts
weight_names           weights under the names that vLLM's loader knows; the layers that adapters have
transformers_sampler   sampling where there is no vLLM
engine_use             how full an engine's cache gets, and where it has room for few completions
checked_sampler        checks a sampler's completions before they are used; goes on after the loss of an engine
tool_parsers           reads calls of tools by vLLM's parsers
turns                  the turns of episodes on their way to an engine in this process

vLLM servers, and engines beside learners:
server_sampler         asks servers for completions
engine_beside          asks the engine on a rank's own device, which is a server of its own
fleet, member          all servers of a run: sends them weights, gives up lost ones, takes them back; one of them
servers, replica       how servers are started; one server, and when it is restarted
dispatch               hands requests out to the servers
server_middleware      in the server: the run's key, one run at a time, how full its cache was
claims                 in the run: claims servers, and compares what they run with what the run needs

A round:
collect                prompts → scored groups, with dynamic sampling or a budget
group_source           a round's groups, sampled on demand, or ahead while the last round is learned from
grading_thread         grades groups while others are sampled
"""
