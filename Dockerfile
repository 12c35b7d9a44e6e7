# One image for both services; the command selects one. The default is `executor serve`.
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source

# The pinned libraries first, because this layer changes only when the lock changes.
COPY requirements/runtime.txt requirements/build.txt requirements/
RUN python -m venv --without-pip /opt/turnstile \
    && pip --python /opt/turnstile/bin/python install --require-hashes --only-binary :all: -r requirements/runtime.txt \
    && pip install --require-hashes --only-binary :all: -r requirements/build.txt

COPY pyproject.toml LICENSE README.md ./
COPY src src
COPY common common
COPY executor executor
COPY worker worker
COPY client client
COPY migrations migrations
RUN pip wheel --no-build-isolation --no-deps --wheel-dir /dist . \
    && pip --python /opt/turnstile/bin/python install --no-index --no-deps /dist/*.whl


FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="turnstile" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/turnstile/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

RUN useradd --system --uid 10001 --create-home --home-dir /home/turnstile turnstile
COPY --from=build /opt/turnstile /opt/turnstile

# A worker imports its actions from this folder: mount or COPY them, and name the module with --actions.
WORKDIR /srv/turnstile
USER 10001

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["turnstile", "healthcheck"]

CMD ["executor", "serve"]
