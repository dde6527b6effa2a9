# The trainer: torch, the packages of trainer/, the demo's target. Nothing is compiled, so it contains no compiler.
#
#   docker build -f docker/trainer.Dockerfile --build-arg TORCH_ARGS="--index-url ADDRESS" .
FROM python:3.11-slim-bookworm

# Extra arguments for pip when it installs torch, such as an index of CPU builds; empty: CUDA builds.
ARG TORCH_ARGS=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1

# User 10001 owns what the trainer writes; in /targets trainers announce themselves to Prometheus.
RUN groupadd --gid 10001 draftscope \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /cache --shell /usr/sbin/nologin draftscope \
 && install -d -o 10001 -g 10001 -m 0755 /runs /cache /targets

WORKDIR /app

# Least frequently changed first: torch is most of the image.
COPY requirements/torch.txt requirements/lock.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --only-binary :all: ${TORCH_ARGS} -r requirements/torch.txt -c requirements/lock.txt
COPY requirements/demo-target.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install -q --only-binary :all: --no-deps -r requirements/demo-target.txt
COPY requirements/trainer.txt requirements/demo.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install -q --only-binary :all: -r requirements/trainer.txt -r requirements/demo.txt -c requirements/lock.txt

COPY pyproject.toml LICENSE ./
COPY docker/entrypoint.py docker/healthcheck.py docker/
COPY trainer/ trainer/
RUN python -m compileall -q trainer && chmod -R a+rX /app

# The version of the code: the label for people, the variable for run.json.
ARG DRAFTSCOPE_COMMIT=""
LABEL org.opencontainers.image.title="Draftscope trainer" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${DRAFTSCOPE_COMMIT}"
# /cache holds the demo's converted target and models from the hub.
ENV DRAFTSCOPE_COMMIT=${DRAFTSCOPE_COMMIT} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app \
    HOME=/cache XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false

USER 10001:10001
EXPOSE 9400
ENTRYPOINT ["python", "/app/docker/entrypoint.py"]
HEALTHCHECK --interval=15s --timeout=6s --start-period=30m CMD ["python", "-S", "/app/docker/healthcheck.py", "9400", "/readyz"]
