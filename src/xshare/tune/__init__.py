"""Will it help, how much may be pruned: the latency law, the examination of an engine, the search, the profile."""
