"""Will it help, and how much may be pruned? The doctor's examination, the staircase, and the search for a policy."""
