"""What engines that serve have in common: settings, what a step is, who selects for a layer, what is counted.

vllm/ and sglang/ are plugins for two such engines. Each finds its layers, reads its steps and reaches its routers by
itself; all between is here.
"""
