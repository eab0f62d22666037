# The image of operator and router: a virtual environment on a slim Python, no compiler, no package manager, no root.
# It needs no writable root file system; the processes write nothing.

# Pin it: docker build --build-arg PYTHON=python:3.13-slim@sha256:...
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir "uv==0.13.*"
WORKDIR /src
# Dependencies first: they change less often than the code, and stay in the layer cache.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --extra router --no-install-project
COPY operator operator
RUN uv sync --frozen --no-dev --extra router --no-editable

FROM ${PYTHON}
LABEL org.opencontainers.image.title="sglpool" \
      org.opencontainers.image.description="Pools of SGLang replicas for coding agents on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/.venv /src/.venv
ENV PATH=/src/.venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Outside the source root, so that no folder can shadow a module.
WORKDIR /
USER 65532:65532
ENTRYPOINT ["python", "-P", "-m", "sglpool"]
CMD ["operator"]
