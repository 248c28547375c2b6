"""What a whole model costs: its report, memory, times, layouts over devices, and models of equal cost. No torch."""
