"""XShare inside vLLM: a plugin. `plugin.register` is the entry point; docs/vllm.md is the guide."""
