"""What the comparison scripts share: the machine, memory cgroups, the servers, the load, turns and results."""
