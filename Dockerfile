# raytrain as an image, with the versions of requirements.lock.
#
#   docker build -t raytrain .
#   docker run --rm -it --shm-size 4g -v "$PWD":/work raytrain train experiment.py --dry_run
#
# PyTorch's usual wheels for Linux hold CUDA, so that this image is for CPUs and GPUs (`docker run --gpus all`). For CPUs alone
# it is several GB smaller with the URL of PyTorch's index of CPU wheels: --build-arg TORCH_INDEX=URL.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

ARG TORCH_INDEX=
# Extras of pyproject.toml, such as sweep,onnx
ARG EXTRAS=aws

WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY raytrain raytrain
RUN if [ -n "$TORCH_INDEX" ]; then \
      pip install --no-cache-dir --index-url "$TORCH_INDEX" --constraint requirements.lock torch torchvision; \
    fi && \
    pip install --no-cache-dir --constraint requirements.lock ".[$EXTRAS]" && \
    python -m compileall -q "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/raytrain" && \
    useradd --create-home raytrain && mkdir /work && chown raytrain /work

USER raytrain
WORKDIR /work
ENTRYPOINT ["raytrain"]
CMD ["--help"]
