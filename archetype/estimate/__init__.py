"""The cost of a whole model: report, memory, times, layouts over devices, and models of equal cost. No torch."""
