# XShare in vLLM's own image; the entrypoint stays vLLM's, `vllm serve`.
#
#     docker build --tag vllm-xshare .
#     docker run --gpus all --ipc=host --publish 127.0.0.1:8000:8000 vllm-xshare --model MODEL \
#       --additional-config '{"xshare": {"policy": "balanced"}}'
#
# Another version: --build-arg VLLM=v0.32.0; docs/vllm.md says which were run and which were read.
ARG VLLM=v0.26.0
FROM vllm/vllm-openai:${VLLM}
COPY . /opt/xshare
# Whatever vLLM brought stays as it is: torch and all else that this package asks for is there already.
RUN uv pip install --system --no-cache /opt/xshare && xshare methods
