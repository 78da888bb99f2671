"""This room holds what the framework needs of the machine that it runs on.

environment   process variables that are set before heavy imports
ranks         this process's rank and device
kernels       the machine's GPUs, and what it lacks to compile and run kernels on them
repeatable    kernels that give the same bits each time
device_memory how much memory the device has, and how much is free
main_memory   how much main memory and how many cores the machine has, or its container
network       free ports, addresses and interfaces
ports         keeps ports for servers that are still starting
imports       where modules are found, and heavy imports without garbage collection
terminal      text that cannot steer a terminal
output        printing that cannot end a run
alive         lines that say a long command is still working; why a process ended, from its log
disk          how much space a folder takes, and how much is left
signals       requests to stop: Ctrl-C and SIGTERM
event_loop    runs coroutines, in a notebook too
together      ends all ranks when one of them fails
folder_lock   keeps a second run out of a run's folder
tether        runs a command that ends with whoever started it, and with the tether itself
"""
