"""What serving engines have in common: settings, the step, the selector of a layer, the counters.

vllm/ and sglang/ are plugins for two such engines. Each finds the engine's layers, reads its steps and hooks into its
routers. Everything in between is here.
"""
