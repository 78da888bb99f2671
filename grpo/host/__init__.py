"""This room holds what the framework needs of the machine that it runs on.

`environment` sets process variables before heavy imports. `ranks` tells this process's rank and device. `network` finds
free ports and addresses. `terminal` prints text that cannot steer a terminal. `stop` counts requests to stop,
`folder_lock` keeps a second run out of a folder, and `tether` runs a command that ends with whoever started it.
"""
