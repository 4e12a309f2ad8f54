# TensorBoard with the Perf Advisor tab, on the runs that are mounted at /runs:
#
#   docker build --tag perf-advisor .
#   docker run --rm --publish 127.0.0.1:6006:6006 --volume "$PWD/runs:/runs:ro" perf-advisor
#
# Or the command line: docker run --rm --volume … perf-advisor perfadvisor analyze /runs
FROM python:3.13-slim

COPY . /source
RUN pip install --no-cache-dir '/source[gcs,s3,mcp]' && useradd --create-home --uid 1000 perfadvisor

USER 1000
WORKDIR /home/perfadvisor
EXPOSE 6006
CMD ["tensorboard", "--logdir", "/runs", "--bind_all"]
