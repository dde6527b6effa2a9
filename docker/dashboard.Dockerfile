# The web app over the runs' records. No torch: of the trainer it contains only the catalogue of metrics and the record's format and reader.
FROM python:3.11-slim-bookworm

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1

# The same user as the trainer, whose files it reads; group 0, so that Grafana, which runs in it, can read its keys.
RUN groupadd --gid 10001 draftscope \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin draftscope \
 && install -d -o 10001 -g 10001 -m 0755 /runs \
 && install -d -o 10001 -g 10001 -m 0700 /keys/trainer \
 && install -d -o 10001 -g 0 -m 0750 /keys/grafana

WORKDIR /app
COPY requirements/dashboard.txt requirements/lock.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install -q --only-binary :all: -r requirements/dashboard.txt -c requirements/lock.txt

COPY pyproject.toml LICENSE ./
COPY docker/init_secrets.py docker/healthcheck.py docker/
COPY docs/runbooks/ docs/runbooks/
COPY trainer/__init__.py trainer/
COPY trainer/metrics/__init__.py trainer/metrics/
COPY trainer/metrics/catalogue/ trainer/metrics/catalogue/
COPY trainer/record/__init__.py trainer/record/format.py trainer/record/reader.py trainer/record/
COPY dashboard/ dashboard/
RUN python -m compileall -q dashboard trainer && chmod -R a+rX /app

ARG DRAFTSCOPE_COMMIT=""
LABEL org.opencontainers.image.title="Draftscope dashboard" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${DRAFTSCOPE_COMMIT}"
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app

USER 10001:10001
EXPOSE 8400
CMD ["python", "-m", "dashboard", "--runs", "/runs", "--host", "0.0.0.0"]
HEALTHCHECK --interval=15s --timeout=6s --start-period=1m CMD ["python", "-S", "/app/docker/healthcheck.py", "8400", "/healthz"]
