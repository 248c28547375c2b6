"""Linear attention with a fixed or learned decay: retention, lightning attention, GLA and HGRN2."""
