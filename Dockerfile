# docker build -t bestofk . && docker run --rm --gpus all -v "$PWD:/work" bestofk train countdown-tiny
FROM python:3.12-slim
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
RUN pip install --no-cache-dir -c constraints.txt '.[train,math,data,api]'
WORKDIR /work
ENTRYPOINT ["bestofk"]
CMD ["--help"]
