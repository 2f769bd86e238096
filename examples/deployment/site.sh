#!/bin/bash
# A site in a container: its SuperNode, with the given options, and what runs its apps:
# reviewed ones only. If one of the two ends, so does the container.
trap 'kill $(jobs -p); wait' TERM
flower-supernode --isolation=process "$@" &
flwr-fbo superexec /run/secrets/trusted-apps -- --insecure --runtime-api-address 127.0.0.1:9094 &
wait -n
