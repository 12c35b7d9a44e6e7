# One image for both services: the command says which. `executor serve` is the default.
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source

# The pinned libraries first: this layer changes only when the lock does.
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
# The stress harness and its private servers are no part of the image.
RUN rm src/turnstile/stress src/turnstile/localservers
RUN pip wheel --no-build-isolation --no-deps --wheel-dir /dist . \
    && pip --python /opt/turnstile/bin/python install --no-index --no-deps /dist/*.whl


FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="turnstile" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/turnstile/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

RUN useradd --system --uid 10001 --create-home --home-dir /home/turnstile turnstile
COPY --from=build /opt/turnstile /opt/turnstile

# A worker imports its actions from here: mount or COPY them, and name the module with --actions.
WORKDIR /srv/turnstile
USER 10001

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, sys; from http.client import HTTPConnection; e = os.environ.get; c = HTTPConnection('127.0.0.1', int(e('TURNSTILE_WORKER_HTTP_PORT') or e('TURNSTILE_HTTP_PORT') or 8000), timeout=4); c.request('GET', '/livez'); sys.exit(c.getresponse().status != 200)"]

CMD ["executor", "serve"]
