# `archetype serve` on the CPU, as a user without rights:
#   docker build --tag archetype .
#   docker run --publish 8000:8000 --volume "$PWD/runs:/models:ro" archetype /models/mine --api-key secret
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/archetype
ENV PATH=/opt/archetype/bin:$PATH
WORKDIR /source
COPY constraints.txt ./
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu --constraint constraints.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY archetype archetype
COPY web web
RUN pip install --no-cache-dir ".[serve,grammar,gguf,sentencepiece,tiktoken]" --constraint constraints.txt

FROM python:3.12-slim
RUN useradd --create-home archetype
COPY --from=build /opt/archetype /opt/archetype
ENV PATH=/opt/archetype/bin:$PATH
USER archetype
WORKDIR /home/archetype
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["archetype", "serve", "--host", "0.0.0.0"]
