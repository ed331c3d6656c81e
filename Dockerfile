# soak in a container. How to build it for NVIDIA and for the CPU, and how to run it: docs/container.md.
#
#     docker build -t gpu-soak .
#
# BASE_IMAGE brings Python >= 3.11, pip, and torch with the libraries of its cards, all of which is kept. The default
# is for MI50 (gfx906): torch 2.13 built for this card on ROCm 7.14, since torch's own builds no longer run there. It
# was chosen from its description and has not been run on the card.
ARG BASE_IMAGE=docker.io/mixa3607/pytorch-gfx906:v2.13.0-rocm-7.14

FROM ${BASE_IMAGE} AS wheel
COPY pyproject.toml README.md LICENSE /src/
COPY soak /src/soak
COPY kernels /src/kernels
COPY migrations /src/migrations
RUN python3 -m pip wheel --quiet --no-cache-dir --no-deps --wheel-dir /wheel /src
COPY constraints.txt /wheel/


FROM ${BASE_IMAGE}

# The environment has no pip of its own, and sees the packages of the base; those of a base whose python3 is itself of
# an environment are not the system's and are named in a file.
RUN python3 -m venv --without-pip --system-site-packages /opt/soak \
 && if ! /opt/soak/bin/python -c 'import torch' 2>/dev/null; then \
      home="$(python3 -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' 2>/dev/null || true)"; \
      if [ -n "$home" ]; then \
        echo "$home" > "$(echo /opt/soak/lib/python3.*/site-packages)/torch-of-base.pth"; \
      fi; \
    fi

# Only for a base without torch, such as Python's own for the CPU: the requirement, and pip's options beside it.
ARG TORCH=
ARG TORCH_OPTIONS=
RUN if [ -n "$TORCH" ]; then \
      python3 -m pip --python /opt/soak/bin/python install --quiet --no-cache-dir $TORCH_OPTIONS "$TORCH"; \
    fi

# gfx906 needs Triton >= 3.8, NVIDIA >= 3.6; empty keeps the base's. It goes before the base's, which torch.compile
# may want and soak does not use.
ARG TRITON=triton==3.9.0
RUN if [ -n "$TRITON" ]; then \
      python3 -m pip --python /opt/soak/bin/python install --quiet --no-cache-dir --no-deps "$TRITON"; \
    fi

# Copied and not mounted: builders that keep layers look at what is copied.
COPY --from=wheel /wheel /opt/soak/wheel
RUN set -- /opt/soak/wheel/gpu_soak-*.whl \
 && python3 -m pip --python /opt/soak/bin/python install --quiet --no-cache-dir \
      --constraint /opt/soak/wheel/constraints.txt "$1[postgresql]" \
 && groupadd --gid 10001 soak \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin soak \
 && install --directory --owner 10001 --group 10001 /data

COPY deploy/container/fitness.py deploy/container/healthcheck.py /opt/soak/container/
RUN /opt/soak/bin/python /opt/soak/container/fitness.py

# Everything that is written goes below /data: the root file system may be read-only. `container` says that this is
# one, to whom it matters (runtimes set it to their own names).
ENV PATH=/opt/soak/bin:$PATH \
    HOME=/data \
    XDG_CACHE_HOME=/data/cache \
    TRITON_CACHE_DIR=/data/cache/triton \
    CUDA_CACHE_PATH=/data/cache/cuda \
    SOAK_DATA_DIR=/data \
    SOAK_LISTEN=0.0.0.0:9868 \
    SOAK_LINGER=5m \
    container=oci
# Where there is no folder for temporary files, the working directory is one.
WORKDIR /data
VOLUME /data
EXPOSE 9868
USER 10001:10001
STOPSIGNAL SIGTERM
# A card has ten minutes until its first step.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 \
    CMD ["/opt/soak/bin/python", "-I", "-S", "/opt/soak/container/healthcheck.py"]
ENTRYPOINT ["soak"]
CMD ["run"]

ARG BASE_IMAGE
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="soak" \
      org.opencontainers.image.description="Soaks GPUs for 48 hours and says whether they can be trusted" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
