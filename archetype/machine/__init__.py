"""The machine: processor, memory, devices and their published peaks."""
